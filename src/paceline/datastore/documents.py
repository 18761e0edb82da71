"""What a document of a datastore may be, and which ones an index keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from paceline.datastore.sorting import Int32
from paceline.errors import UsageError

__all__ = ["bounded", "check_limit", "checked"]


def checked(document: Sequence[int] | Int32) -> Int32:
    """Return a document as an array. Raises UsageError for anything but token ids."""
    tokens = np.asarray(document)
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise UsageError("a document must be a list of token ids that fit into 32 bits")
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < 2**31 - 1:
        raise UsageError("a token id is negative or does not fit into 32 bits")
    return tokens.astype(np.int32)


def check_limit(most: int | None) -> None:
    """Raises UsageError for a limit that leaves no room for a token."""
    if most is not None and most < 1:
        raise UsageError(f"most is {most}: give a number of tokens above 0")


def bounded(documents: Sequence[Int32], most: int) -> list[Int32]:
    """Return the newest documents that fit into `most` tokens, borders included, each once; if not
    even the newest fits, its end."""
    kept: dict[bytes, Int32] = {}
    room = most
    for document in reversed(documents):
        digest = hashlib.sha256(document.tobytes()).digest()
        if len(document) == 0 or digest in kept:
            continue
        room -= len(document) + 1
        if room < 0:
            if not kept:
                kept[digest] = document[-most:]
            break
        kept[digest] = document
    return list(kept.values())[::-1]
