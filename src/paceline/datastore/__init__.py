"""Look up how texts continued: places sorted by the tokens before them, in memory and in files."""

from __future__ import annotations

from paceline.datastore.search import MOST_HITS, NOTHING, Found, Search
from paceline.datastore.sorting import BORDER, LONGEST, PROMPT_TOKENS
from paceline.datastore.store import MOST_TOKENS, Datastore, DatastoreInfo, clear_datastore
from paceline.datastore.suffix_array import GrowingSuffixArray, SuffixArray

__all__ = [
    "BORDER",
    "LONGEST",
    "MOST_HITS",
    "MOST_TOKENS",
    "NOTHING",
    "PROMPT_TOKENS",
    "Datastore",
    "DatastoreInfo",
    "Found",
    "GrowingSuffixArray",
    "Search",
    "SuffixArray",
    "clear_datastore",
]
