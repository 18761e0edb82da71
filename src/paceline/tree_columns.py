"""Trees as the C library reads and writes them: columns of numbers."""

from __future__ import annotations

import ctypes
from typing import Any

from paceline.tree import EMPTY, Tree

_FEW = 64


class TreeColumns:
    """Memory for one tree.

    one: the library's `struct pl_tree`, which is made to point to it. united: whether trees in it
    have sources.

    room: most nodes.
    """

    def __init__(self, one: Any, united: bool = False) -> None:
        self._one, self._united = one, united
        self._allocate(_FEW)

    def make_room(self, nodes: int) -> None:
        """Make room for this many nodes; present ones stay."""
        if nodes <= self.room:
            return
        known, kept = self._columns, self._one.nodes
        self._allocate(nodes)
        for column, before in zip(self._columns, known):
            column[:kept] = before[:kept]

    def put(self, tree: Tree) -> None:
        """Replace the tree."""
        one, nodes = self._one, len(tree.tokens)
        if nodes > self.room:
            self._allocate(2 * nodes)
        one.nodes = nodes
        self.tokens[:nodes], self.parents[:nodes] = list(tree.tokens), list(tree.parents)
        one.sources = one.weights = None
        if tree.sources is not None:
            self.sources[:nodes] = list(tree.sources)
            one.sources = self._sources_at
        if tree.weights is not None:
            self.weights[:nodes] = list(tree.weights)
            one.weights = self._weights_at

    def tree(self) -> Tree:
        """The tree that the library has made."""
        nodes = self._one.nodes
        if not nodes:
            return EMPTY
        return Tree.of_columns(
            tuple(self.tokens[:nodes]),
            tuple(self.parents[:nodes]),
            tuple(self.weights[:nodes]),
            tuple(self.sources[:nodes]) if self._united else None,
        )

    def _allocate(self, room: int) -> None:
        self.room = 0
        self.tokens, self.parents, self.sources = ((ctypes.c_int64 * room)() for _ in range(3))
        self.weights = (ctypes.c_double * room)()
        one, at = self._one, ctypes.addressof
        one.tokens, one.parents, one.weights = at(self.tokens), at(self.parents), at(self.weights)
        self._sources_at, self._weights_at = at(self.sources), at(self.weights)
        one.sources = self._sources_at
        self.room = room  # last, in case of an interruption

    @property
    def _columns(self) -> tuple[Any, ...]:
        return self.tokens, self.parents, self.sources, self.weights
