"""Earlier queries and their outputs, kept as references for LLMA (cache-assisted scenario)."""

from __future__ import annotations

from paceline.references.retrieval import SentenceEncoder, TransformersEncoder
from paceline.references.store import Entry, ReferenceStore, StoreInfo

__all__ = ["Entry", "ReferenceStore", "SentenceEncoder", "StoreInfo", "TransformersEncoder"]
