"""A text, and how it continued wherever its own last tokens, or another text's, occurred before."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from paceline.datastore.search import (
    ANYTHING,
    MOST_HITS,
    NOTHING,
    Found,
    Search,
    insert_place,
    look_up,
)
from paceline.datastore.sorting import BORDER, LONGEST, Int32, is_in_order, sort_places
from paceline.errors import UsageError
from paceline.kernels.native.buffer import Buffer
from paceline.kernels.native.calls import kernels, unavailable
from paceline.kernels.native.signatures import Suffixes
from paceline.tree import EMPTY, Tree
from paceline.tree_columns import TreeColumns

_INSERTED = 4096
"""Most new tokens that the library inserts into the order one by one. In texts of 1,000 to 1,000,000
tokens that is no slower than to sort all places: 10 ms instead of 27 for 4096 after 128,000 tokens,
0.9 ms for 512."""
_SLOWLY_INSERTED, _PER_INSERTED = 4, 256
"""The same without the library: so many, and one for this many tokens of the text. One takes 20 to
60 microseconds."""
_LARGEST = 2**31 - 1


class SuffixArray:
    """Finds the longest suffix of a tail of tokens that occurs in a text, and what follows it.

        >>> array = SuffixArray(np.array([7, 1, 2, 3, 4, BORDER, 2, 3, 9], dtype=np.int32))
        >>> found = array.look_up([8, 1, 2, 3], budget=4)
        >>> found.matched, found.tree.tokens  # 1 2 3 occurs, 8 1 2 3 does not
        (3, (4,))
        >>> found.shorter, array.look_up([2, 3], budget=4).tree.tokens
        (2, (9, 4))

    tokens: int32 [n], documents with a `BORDER` between them. order: of their places, see
    `sort_places`; None computes it. Both may be mapped files, and are not changed.

    dropped: tokens that stood before its first one and were dropped. whole: whether all of it is
    known: after an interruption, as by Ctrl-C, places may be missing until tokens are added.

    A lookup takes two or three binary searches. Not thread-safe: each thread makes its own array on
    the same tokens. Matches have at most `LONGEST` tokens.
    """

    dropped = 0
    whole = True

    def __init__(self, tokens: Int32, order: Int32 | None = None) -> None:
        self._tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        self._order = sort_places(self._tokens) if order is None else order
        self._asked: Search | None = None
        self._tail = Buffer(ctypes.c_int32)
        self._call = Suffixes(most=LONGEST)
        self._found = TreeColumns(self._call.found)
        self._address = ctypes.addressof(self._call)
        self._native = None if unavailable() else kernels()
        self._point(len(self._tokens), len(self._order))

    def __len__(self) -> int:
        """The number of tokens, borders included."""
        return int(self._call.count)

    def look_up(self, tail: Sequence[int], budget: int, search: Search = ANYTHING) -> Found:
        """Find what followed the longest suffix of `tail`, in a tree of at most `budget` nodes."""
        near, call = tail[-LONGEST:], self._call
        if not near or budget < 1 or not call.size:
            return NOTHING
        if self._native is None:
            tokens, order = self._tokens[: call.count], self._order[: call.size]
            return look_up(tokens, order, near, budget, search)
        self._put(near, budget, search)
        self._native.look_up(self._address)
        if not call.matched:
            return NOTHING
        return Found(call.matched, call.shorter, call.begin, call.end, self._found.tree())

    def look_up_lengths(
        self, tail: Sequence[int], budget: int, search: Search, lengths: int
    ) -> tuple[Tree, float]:
        """Look up the longest suffix of `tail`, then shorter ones that occur in more places, at
        most `lengths` in all. Returns the first tree with the largest sum of weights, and that
        sum."""
        near, call = tail[-LONGEST:], self._call
        if not near or budget < 1 or not call.size:
            return EMPTY, 0.0
        if self._native is None:
            return self._look_up_lengths(near, budget, search, lengths)
        self._put(near, budget, search)
        call.total = 0.0  # what the first tree must exceed
        self._native.look_up_lengths(self._address, lengths)
        return self._found.tree(), call.total

    def places(self, found: Found) -> Int32:
        """Return the places of `found`, which was looked up here just now, as a view."""
        return self._order[found.begin : found.end]

    def around(self, place: int, before: int, after: int) -> tuple[int, Int32]:
        """Return the text around a place, within its document: where it begins, and its tokens, at
        most `before` before and `after` after the place."""
        first = max(0, place - before)
        borders = (self._tokens[first:place] == BORDER).nonzero()[0]
        first += int(borders[-1]) + 1 if len(borders) else 0
        rest = self._tokens[place : min(place + after, len(self))]
        borders = (rest == BORDER).nonzero()[0]
        last = place + (int(borders[0]) if len(borders) else len(rest))
        return first, self._tokens[first:last]

    def _look_up_lengths(
        self, near: Sequence[int], budget: int, search: Search, lengths: int
    ) -> tuple[Tree, float]:
        """Do the same without the C library."""
        best, most, length = EMPTY, 0.0, len(near)
        for _ in range(lengths):
            found = self.look_up(near[-length:], budget, search)
            total = reduce(add, found.tree.weights or (), 0.0)  # as C does; `sum` compensates
            if total > most:
                best, most = found.tree, total
            length = found.shorter
            if not length:
                break
        return best, most

    def _put(self, near: Sequence[int], budget: int, search: Search) -> None:
        call = self._call
        if search is not self._asked:
            call.least, call.hits = search.least, min(search.hits, MOST_HITS)
            call.depth, call.branches, call.doubt = search.depth, search.branches, search.doubt
            call.per_match = search.per_match
            self._asked = search
        self._found.make_room(budget)
        call.length, call.budget, call.tail = len(near), budget, self._tail.put(near)

    def _point(self, count: int, size: int) -> None:
        """Point the library at the present arrays: `count` tokens, `size` places."""
        call = self._call
        call.tokens, call.order = self._tokens.ctypes.data, self._order.ctypes.data
        call.count, call.size = count, size

    def _point_to(self, tokens: Int32, order: Int32, count: int, size: int) -> None:
        """Replace the arrays. If this is interrupted, no places of the text are known."""
        self.whole = False
        self._call.size = self._call.count = 0
        self._tokens, self._order = tokens, order
        self._point(count, size)
        self.whole = True


class GrowingSuffixArray(SuffixArray):
    """A text that grows, and whose last tokens can be taken back.

    Nothing follows the last token yet, so lookups find only earlier places.
    """

    def __init__(self) -> None:
        super().__init__(np.zeros(0, dtype=np.int32))
        self._new = Buffer(ctypes.c_int32)

    @property
    def tokens(self) -> Int32:
        """The whole text, as a view that is valid until tokens are added."""
        return self._tokens[: len(self)]

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens; a further document begins with a `BORDER`.

        Raises UsageError, and adds nothing, for ids below `BORDER` or beyond 32 bits."""
        if len(tokens) == 0:
            return
        if not BORDER <= min(tokens) <= max(tokens) <= _LARGEST:
            raise UsageError("a token id is negative or does not fit into 32 bits")
        if len(tokens) > self._most_inserted():
            self._set(np.concatenate((self.tokens, np.asarray(tokens, dtype=np.int32))))
            return
        self._reserve(len(self) + len(tokens))
        if self._native is not None:
            self._native.add_tokens(self._address, self._new.put(tokens), len(tokens))
        else:
            self._insert(tokens)

    def longest(self, places: Int32, matched: int, tail: Sequence[int]) -> tuple[Int32, int]:
        """Those of the places after `matched` tokens of the tail that share the most with it, and
        how many: lookups compare no more than `LONGEST`."""
        known = self.tokens
        while LONGEST <= matched < len(tail):
            longer = places[places > matched]
            longer = longer[known[longer - matched - 1] == tail[-matched - 1]]
            if not len(longer):
                break
            places, matched = longer, matched + 1
        return places, matched

    def take_back(self, count: int) -> None:
        """Keep only the first `count` tokens."""
        order = self._order[: self._call.size]
        kept = order[order < count]
        order[: len(kept)] = kept
        self._call.count, self._call.size = min(count, len(self)), len(kept)

    def drop(self, count: int) -> None:
        """Drop the first `count` tokens; what follows them, if anything, must be a border."""
        order = self._order[: self._call.size]
        kept = order[order >= count] - count
        self._set(self.tokens[count:].copy(), kept)
        self.dropped += count

    def _most_inserted(self) -> int:
        """Return how many new tokens are inserted sooner than all places are sorted."""
        if self._native is not None:
            return _INSERTED
        return _SLOWLY_INSERTED + len(self) // _PER_INSERTED

    def _set(self, tokens: Int32, order: Int32 | None = None) -> None:
        order = sort_places(tokens) if order is None else order
        self._point_to(tokens, order, len(tokens), len(order))

    def _insert(self, tokens: Sequence[int]) -> None:
        """Insert a few tokens and their places without the library; there is room for them."""
        call = self._call
        for token in tokens:
            place = call.count
            self._tokens[place] = token
            call.count = place + 1
            if is_in_order(self.tokens, np.array([place]))[0]:
                call.size += 1
                insert_place(self.tokens, self._order[: call.size], place)

    def _reserve(self, count: int) -> None:
        # After an interruption the library may know other arrays, or none.
        if self.whole and count <= min(len(self._tokens), len(self._order)):
            return
        room = max(1024, 2 * count)
        size = self._call.size
        tokens, order = np.empty((2, room), dtype=np.int32)
        tokens[: len(self)] = self.tokens
        order[:size] = self._order[:size]
        self._point_to(tokens, order, len(self), size)
