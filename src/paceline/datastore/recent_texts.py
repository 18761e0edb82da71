"""Texts that arrive one by one, in sorted pieces: a new text re-sorts only the newest pieces.

tokens of the pieces, oldest first: 9000 2000 200; 40 more: 9000 2000 240; 900 more: 9000 3140
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.datastore.sorting import BORDER, Int32, sort_places

__all__ = ["RecentTexts", "joined"]

_RATIO = 4
"""A piece has at least this many times the tokens of the next newer one."""

_SMALL = 1024
"""Tokens; smaller pieces are always merged, as every lookup searches each piece."""


class RecentTexts:
    """Sorted pieces of texts; their number grows with the logarithm of the tokens."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Int32, Int32]] = []

    @property
    def pieces(self) -> list[tuple[Int32, Int32]]:
        """Each piece's tokens, with borders, and the order of its places; newest first."""
        return self._pieces[::-1]

    def add(self, documents: Sequence[Int32]) -> None:
        """Add texts newer than all present ones."""
        tokens = joined(documents)
        if not len(tokens):
            return
        while self._pieces and len(self._pieces[-1][0]) < max(_SMALL, _RATIO * len(tokens)):
            tokens = joined([self._pieces.pop()[0], tokens])
        self._pieces.append((tokens, sort_places(tokens)))


def joined(documents: Sequence[Int32]) -> Int32:
    """Concatenate documents, with borders between them."""
    border = np.array([BORDER], dtype=np.int32)
    parts = [part for document in documents for part in (border, document)][1:]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
