"""Documents of a datastore: which may be added and which an index keeps, and the latest ones as
sorted pieces, of which a new text re-sorts only the newest.

tokens of the pieces, oldest first: 9000 2000 200; 40 more: 9000 2000 240; 900 more: 9000 3140
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from paceline.datastore.sorting import BORDER, Int32, sort_places
from paceline.errors import UsageError

_RATIO = 4
"""A piece has at least this many times the tokens of the next newer one."""

_SMALL = 1024
"""Tokens; smaller pieces are always merged, as every lookup searches each piece."""


def checked(document: Sequence[int] | Int32) -> Int32:
    """Return a document as an array. Raises UsageError for anything but token ids."""
    tokens = np.asarray(document)
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise UsageError("a document must be a list of token ids that fit into 32 bits")
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < 2**31 - 1:
        raise UsageError("a token id is negative or does not fit into 32 bits")
    return tokens.astype(np.int32)


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


class RecentTexts:
    """Sorted pieces of texts; their number grows with the logarithm of the tokens."""

    def __init__(self) -> None:
        self._known = list[tuple[Int32, Int32]](), 0  # and how many texts are in them

    def pieces(self, documents: Sequence[Int32]) -> list[tuple[Int32, Int32]]:
        """Each piece's tokens, with borders, and the order of its places; newest first. documents:
        those of before, then newer ones."""
        known, texts = self._known
        pieces, tokens = [*known], joined(documents[texts:])
        if len(tokens):
            while pieces and len(pieces[-1][0]) < max(_SMALL, _RATIO * len(tokens)):
                tokens = joined([pieces.pop()[0], tokens])
            pieces.append((tokens, sort_places(tokens)))
        self._known = pieces, len(documents)  # at once, in case of an interruption
        return pieces[::-1]


def joined(documents: Sequence[Int32]) -> Int32:
    """Concatenate documents, with borders between them."""
    border = np.array([BORDER], dtype=np.int32)
    parts = [part for document in documents for part in (border, document)][1:]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
