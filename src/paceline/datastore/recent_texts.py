"""Texts that come one by one, in sorted pieces: a new one has only the youngest pieces sorted anew.

tokens of the pieces, oldest first: 9000 2000 200; 40 more: 9000 2000 240; 900 more: 9000 3140
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.datastore.sorting import BORDER, Int32, sort_places

__all__ = ["RecentTexts", "joined"]

_RATIO = 4
"""A piece has at least so many times the tokens of the next younger one."""

_SMALL = 1024
"""Tokens; smaller pieces are never left alone, each lookup would search one more."""


class RecentTexts:
    """Sorted pieces of texts, as many as the logarithm of their tokens says."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Int32, Int32]] = []

    @property
    def pieces(self) -> list[tuple[Int32, Int32]]:
        """Tokens, with borders, and the order of their places; the newest texts first."""
        return self._pieces[::-1]

    def add(self, documents: Sequence[Int32]) -> None:
        """Take in texts that are newer than all there are."""
        tokens = joined(documents)
        if not len(tokens):
            return
        while self._pieces and len(self._pieces[-1][0]) < max(_SMALL, _RATIO * len(tokens)):
            tokens = joined([self._pieces.pop()[0], tokens])
        self._pieces.append((tokens, sort_places(tokens)))


def joined(documents: Sequence[Int32]) -> Int32:
    """One document after the other, with borders between them."""
    border = np.array([BORDER], dtype=np.int32)
    parts = [part for document in documents for part in (border, document)][1:]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
