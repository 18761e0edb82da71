"""Texts to draft in, of any length, without a model: a Markov chain over a Zipf-like vocabulary, so
that runs of tokens come back as they do in text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 32_000
SUCCESSORS = 200


class MarkovTexts:
    """Each token is followed by one of 200, the first of them far more often."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        frequencies = _shares(VOCABULARY, 2.7)
        drawn = self._random.random((VOCABULARY, SUCCESSORS))
        self._followers = np.searchsorted(frequencies, drawn).astype(np.int32)
        self._choice = _shares(SUCCESSORS, 1.0)

    def documents(self, count: int, length: int) -> NDArray[np.int32]:
        """[count, length] tokens, other ones with every call."""
        found = np.empty((count, length), dtype=np.int32)
        last = np.zeros(count, dtype=np.int32)
        for place in range(length):
            rank = np.searchsorted(self._choice, self._random.random(count))
            last = self._followers[last, rank]
            found[:, place] = last
        return found

    def text(self, length: int) -> list[int]:
        """One document."""
        tokens: list[int] = self.documents(1, length)[0].tolist()
        return tokens


def _shares(count: int, first: float) -> NDArray[np.float64]:
    """Running sums of shares by rank; the last one is 1."""
    sums = np.cumsum(1 / (np.arange(count) + first))
    return sums / sums[-1]
