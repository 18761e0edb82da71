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
"""Tokens in total: sorting these takes about a millisecond."""

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
        self._taken: set[tuple[int, int]] = set()

    def take(self, found: Found, array: SuffixArray) -> None:
        """Take the documents in which the text was found in `array`, if they are near."""
        if found.matched < _MATCHED or found.places > _PLACES:
            return
        for begin, tokens in array.around(found, _BEFORE, _AFTER):
            known = (id(array), begin)
            if len(self._taken) >= self._most or len(self._array) + len(tokens) >= _MOST:
                return
            if known not in self._taken:
                self._taken.add(known)
                self._array.add([BORDER, *tokens.tolist()])

    def look_up(self, tail: Sequence[int], budget: int) -> tuple[Tree, float]:
        """What followed the end of the text there: a tree, and the sum of its weights."""
        return self._array.look_up_lengths(tail, budget, self._search, _LENGTHS, 0.0)
