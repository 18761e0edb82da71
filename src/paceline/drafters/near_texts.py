"""Documents of a datastore that share a long match with a text, searched apart from all others.

A document that shares several consecutive tokens with the text is likely to be about the same: an
earlier answer to the question, another version of the file. A short match there means more than in
a whole datastore, where two words have been followed by anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.datastore import BORDER, Found, GrowingSuffixArray, Search, SuffixArray
from paceline.drafters.confidence import FOLLOWER_DOUBT
from paceline.tree import Tree

__all__ = ["NearTexts"]

_MATCHED = 6
"""Consecutive matching tokens that make a document a near one."""

_PLACES = 8
"""A match in more places is a phrase that many texts share."""

_BEFORE, _AFTER = 2048, 4096
"""Tokens of a document to take before and after the match."""

_MOST = 1 << 14
"""Tokens in total: sorting these takes about two milliseconds."""

_LENGTHS = 3
"""Match lengths to try, longest first."""


class NearTexts:
    """The near documents of one text.

    most: documents, 0 for none. depth: of trees.
    """

    def __init__(self, most: int, depth: int) -> None:
        self._most = most
        self._search = Search(depth=depth, doubt=FOLLOWER_DOUBT, per_match=64)
        self.forget()

    def forget(self) -> None:
        """Drop all documents for a new text."""
        self._array = GrowingSuffixArray()
        # The array of each stretch, and where it begins and ends there, counted from the first
        # token that the array ever had.
        self._taken: list[tuple[SuffixArray, int, int]] = []

    def take(self, found: Found, array: SuffixArray) -> None:
        """Take the documents in which the text was found in `array`, if they are near."""
        if found.matched < _MATCHED or found.places > _PLACES:
            return
        gone = array.dropped
        for place in array.places(found):
            if len(self._taken) >= self._most:
                return
            if self._has(array, gone + place):
                continue
            begin, tokens = array.around(place, _BEFORE, _AFTER)
            if len(self._array) + len(tokens) < _MOST:
                begin += gone
                self._taken.append((array, begin, begin + len(tokens)))
                self._array.add([BORDER, *tokens.tolist()])

    def _has(self, array: SuffixArray, place: int) -> bool:
        """Whether a place is within a stretch that was taken."""
        return any(source is array and begin <= place < end for source, begin, end in self._taken)

    def look_up(self, tail: Sequence[int], budget: int) -> tuple[Tree, float]:
        """What followed the end of the text there: a tree, and the sum of its weights."""
        return self._array.look_up_lengths(tail, budget, self._search, _LENGTHS, 0.0)
