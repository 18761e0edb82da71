"""What several sources guess for a round, as one tree: in the C library, or in Python.

Both unite alike; tests compare them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import repeat

from paceline.drafters.guesses import lent
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels, unavailable
from paceline.tree import EMPTY, ROOT, Tree
from paceline.union import Union

_UNWEIGHTED = 0.5  # claim of a guess without a weight
_FEW = 64


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

    def ends(self, sources: int, most: int) -> Sequence[int]:
        """The likeliest leaves of any of these sources, best first."""
        union, weights, inner = self._union, self._union.weights(), set(self._union.parents)
        ends = [node for node, by in enumerate(union.sources) if by & sources and node not in inner]
        return sorted(ends, key=lambda node: -weights[node])[:most]

    def path_to(self, node: int) -> tuple[int, ...]:
        """The tokens from a child of the root down to `node`."""
        return self._union.path_to(node)

    def tree(self, most: int) -> Tree:
        """The `most` likeliest nodes, once the round's guesses are complete."""
        return Tree.of_union(self._union, most) if len(self._union) and most > 0 else EMPTY


class _NativeUnion:
    """In the C library; see `_PlainUnion`."""

    def __init__(self, alike: int) -> None:
        self.sure = 0.0
        self._native = kernels()
        self._call = native.Union(alike=alike, unweighted=_UNWEIGHTED)
        self._address = ctypes.addressof(self._call)
        self._set_columns(_FEW)
        self._make_given_room(_FEW)

    def clear(self) -> None:
        self._call.nodes = 0
        self.sure = 0.0

    def add(self, tree: Tree, source: int, at: int = ROOT) -> None:
        call, count = self._call, len(tree.tokens)
        if count > self._given_room:
            self._make_given_room(count)
        if call.nodes + count > self._room:
            self._grow(2 * (call.nodes + count))
        call.count, call.at, call.by = count, at, source
        self._given_tokens[:count] = list(tree.tokens)
        self._given_parents[:count] = list(tree.parents)
        call.given_weights = None
        if tree.weights is not None:
            self._given_weights[:count] = list(tree.weights)
            call.given_weights = ctypes.addressof(self._given_weights)
        self._native.unite(self._address)
        self.sure = call.sure

    def ends(self, sources: int, most: int) -> Sequence[int]:
        return self._places[: self._native.union_ends(self._address, sources, most)]

    def path_to(self, node: int) -> tuple[int, ...]:
        path: list[int] = []
        while node != ROOT:
            path.append(self._tokens[node])
            node = self._parents[node]
        path.reverse()
        return tuple(path)

    def tree(self, most: int) -> Tree:
        call = self._call
        if call.nodes > most:
            self._native.cut_union(self._address, most)
        nodes = call.nodes
        if not nodes:
            return EMPTY
        return Tree.of_columns(
            tuple(self._tokens[:nodes]),
            tuple(self._parents[:nodes]),
            tuple(self._weights[:nodes]),
            tuple(self._sources[:nodes]),
        )

    def _grow(self, room: int) -> None:
        """Make room for `room` nodes; present ones stay."""
        nodes = self._call.nodes
        known = self._tokens, self._parents, self._sources, self._claims
        self._set_columns(room)
        now = self._tokens, self._parents, self._sources, self._claims
        for column, before in zip(now, known):
            column[:nodes] = before[:nodes]

    def _set_columns(self, room: int) -> None:
        """Allocate columns for `room` nodes, none present."""
        call, names = self._call, ("tokens", "parents", "sources", "places")
        self._tokens, self._parents, self._sources, self._places = lent(
            call, ctypes.c_int64, room, *names
        )
        self._claims, self._weights = lent(call, ctypes.c_double, room, "claims", "weights")
        self._room = call.room = room

    def _make_given_room(self, room: int) -> None:
        """Allocate columns for one tree of `room` nodes."""
        self._given_room = room
        self._given_tokens, self._given_parents = lent(
            self._call, ctypes.c_int64, room, "given_tokens", "given_parents"
        )
        self._given_weights = (ctypes.c_double * room)()


UnitedGuesses = _PlainUnion | _NativeUnion
"""A union of trees, made anew for each round; see `Union`."""


def unite(alike: int = 0) -> UnitedGuesses:
    """A union in the library if it is available."""
    return _PlainUnion(alike) if unavailable() else _NativeUnion(alike)
