"""What several sources guess for a round, as one tree: in the C library, or in Python.

Both unite alike; tests compare them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels, unavailable
from paceline.tree import EMPTY, ROOT, Tree
from paceline.tree_columns import TreeColumns
from paceline.union import Union

_UNWEIGHTED = 0.5  # claim of a guess without a weight


class _PlainUnion:
    """In Python.

    alike: sources that know what each other knows, as a set of bits.
    sure: how many nodes are expected to be accepted.
    """

    def __init__(self, alike: int) -> None:
        self._alike = alike
        self.clear()

    def clear(self) -> None:
        """Begin a round, without guesses."""
        self._union = Union(self._alike)
        self.sure = 0.0

    def add(self, tree: Tree, source: int, at: int = ROOT) -> None:
        """Add what one source, as a set of bits, guesses after node `at`."""
        claims = repeat(_UNWEIGHTED) if tree.weights is None else tree.claims
        self._union.add(tree.tokens, tree.parents, claims, repeat(source), at)
        self.sure = sum(self._union.weights())

    def ends(self, sources: int, most: int) -> list[_End]:
        """The likeliest leaves of any of these sources, best first."""
        union, weights, inner = self._union, self._union.weights(), set(self._union.parents)
        ends = [node for node, by in enumerate(union.sources) if by & sources and node not in inner]
        best = sorted(ends, key=lambda node: -weights[node])[:most]
        return [_end(node, union) for node in best]

    def tree(self, most: int) -> Tree:
        """The `most` likeliest nodes, once the round's guesses are complete."""
        return Tree.of_union(self._union).prune(most) if len(self._union) and most > 0 else EMPTY


class _NativeUnion:
    """In the C library; see `_PlainUnion`."""

    def __init__(self, alike: int) -> None:
        self.sure = 0.0
        self._native = kernels()
        self._call = native.Union(alike=alike, unweighted=_UNWEIGHTED)
        self._address = ctypes.addressof(self._call)
        self._given = TreeColumns(self._call.given)
        self._tree = TreeColumns(self._call.tree, united=True)
        self._claims, self._places = self._make_room()

    def clear(self) -> None:
        self._call.tree.nodes = 0
        self.sure = 0.0

    def add(self, tree: Tree, source: int, at: int = ROOT) -> None:
        call = self._call
        nodes = call.tree.nodes + len(tree.tokens)
        if nodes > self._tree.room:
            self._tree.make_room(2 * nodes)
            self._claims, self._places = self._make_room(self._claims)
        self._given.put(tree)
        call.at, call.by = at, source
        self._native.unite(self._address)
        self.sure = call.sure

    def ends(self, sources: int, most: int) -> list[_End]:
        count = self._native.union_ends(self._address, sources, most)
        return [_end(node, self._tree) for node in self._places[:count]]

    def tree(self, most: int) -> Tree:
        self._native.cut_union(self._address, most)
        return self._tree.tree()

    def _make_room(
        self, known: Iterable[float] = ()
    ) -> tuple[ctypes.Array[Any], ctypes.Array[Any]]:
        """Columns beside the tree's, as long as these. known: claims so far."""
        call, room = self._call, self._tree.room
        claims, places = (ctypes.c_double * room)(*known), (ctypes.c_int64 * room)()
        call.claims, call.places = ctypes.addressof(claims), ctypes.addressof(places)
        call.room = room
        return claims, places


_End = tuple[int, tuple[int, ...]]
"""A node, and the tokens from a child of the root down to it."""


def _end(node: int, united: Union | TreeColumns) -> _End:
    path: list[int] = []
    above = node
    while above != ROOT:
        path.append(united.tokens[above])
        above = united.parents[above]
    return node, tuple(reversed(path))


UnitedGuesses = _PlainUnion | _NativeUnion
"""A union of trees, made anew for each round; see `Union`."""


def unite(alike: int) -> UnitedGuesses:
    """A union in the library if it is available."""
    return _PlainUnion(alike) if unavailable() else _NativeUnion(alike)
