"""The drafter's proposal: a tree of guessed tokens, the only draft type.

A node is a token and the index of its parent; -1 (`ROOT`) is the last committed token, the root of
every tree. Parents come before their children. There are no padding ids: every entry is a real
guess. A chain is a tree with parents -1, 0, 1, …; the empty tree is plain decoding.

    root ── 7 ── 4          Tree(tokens=(7, 4, 9), parents=(-1, 0, -1))
        └── 9

Nodes may have *virtual* ids at or beyond the vocabulary size (trained prompt tokens, look-ahead
windows): the target scores them, a drafter reads their rows, and no draw can equal them. A *shadow*
is the virtual id of a real token: the target reads that token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isnan
from operator import lt

import numpy as np
from numpy.typing import NDArray

from paceline.union import Union

ROOT = -1

SHADOWS = 1 << 40
"""SHADOWS + t is the shadow of token t. No vocabulary is as large, even with added tokens."""


@dataclass(frozen=True)
class Tree:
    """Guessed continuations of the committed text.

    tokens: n token ids (>= 0).
    parents: n node indices, each smaller than the node's own, or ROOT.
    weights: n estimates of how likely each node is to be accepted, or None if unknown.
    sources: which sources proposed each node, as n sets of bits: bit i stands for the i-th of the
    drafter's `source_names`; None if the drafter has no sources.

    Raises ValueError if lengths differ, a parent does not come first, an id is negative, or a
    weight is negative or not a number.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    weights: tuple[float, ...] | None = None
    sources: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.tokens)
        for name in ("parents", "weights", "sources"):
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise ValueError(f"{count} tokens but {len(column)} {name}")
        if self.weights is not None and any(map(isnan, self.weights)):
            raise ValueError(f"a weight is nan: {self.weights}")
        if self.weights and min(self.weights) < 0:
            raise ValueError(f"a weight is negative: {self.weights}")
        if count and not (min(self.parents) >= ROOT and all(map(lt, self.parents, range(count)))):
            late = next(node for node in range(count) if not ROOT <= self.parents[node] < node)
            raise ValueError(f"parent {self.parents[late]} of node {late} does not come before it")
        if count and (least := min(self.tokens)) < 0:
            raise ValueError(f"node {self.tokens.index(least)} has the negative token id {least}")

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Tree:
        """A chain of guesses: parents -1, 0, 1, …"""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    @classmethod
    def of_union(cls, union: Union) -> Tree:
        """The nodes of a union of trees."""
        weights = tuple(union.weights())
        return cls.of_columns(
            tuple(union.tokens), tuple(union.parents), weights, tuple(union.sources)
        )

    @classmethod
    def of_columns(
        cls,
        tokens: tuple[int, ...],
        parents: tuple[int, ...],
        weights: tuple[float, ...] | None,
        sources: tuple[int, ...] | None,
    ) -> Tree:
        """A tree from columns that are known to be valid: nothing is checked."""
        tree = object.__new__(cls)
        vars(tree).update(tokens=tokens, parents=parents, weights=weights, sources=sources)
        return tree

    @classmethod
    def of_paths(cls, paths: Iterable[Sequence[int]]) -> Tree:
        """A tree of token paths from the root, with common prefixes merged and nodes numbered in
        the order of the paths.

            (7, 4), (7, 5), (9,)  ->  tokens 7, 4, 5, 9, parents ROOT, 0, 0, ROOT
        """
        nodes: dict[tuple[int, int], int] = {}
        for path in paths:
            node = ROOT
            for token in path:
                node = nodes.setdefault((node, token), len(nodes))
        return cls(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def as_read(self) -> tuple[int, ...]:
        """The id that a target reads at each node: for a shadow, its token."""
        return tuple(token - SHADOWS if token >= SHADOWS else token for token in self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each node from the root; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> dict[int, dict[int, int]]:
        """For ROOT and each node with children: child token -> child node.

        Of equal siblings the first counts: its twin is never walked.
        """
        children: dict[int, dict[int, int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, {}).setdefault(self.tokens[node], node)
        return children

    @cached_property
    def claims(self) -> tuple[float, ...]:
        """Weights given that the parent is accepted, at most 1.0. All are 1.0 without weights; 0.0
        below a parent of weight 0."""
        if self.weights is None:
            return (1.0,) * len(self)
        above = (*self.weights, 1.0)  # the last entry is ROOT's
        return tuple(
            [
                min(1.0, weight / above[parent]) if above[parent] > 0 else 0.0
                for weight, parent in zip(self.weights, self.parents)
            ]
        )

    @cached_property
    def ancestor_mask(self) -> NDArray[np.bool_]:
        """[n, n]: entry (i, j) is True where node j is node i or one of its ancestors."""
        mask = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                mask[node] |= mask[parent]
        return mask

    def child(self, node: int, token: int) -> int | None:
        """The child of `node`, or of ROOT, with this token; None if there is none. Of equal
        siblings the first counts. For a few calls this is faster than to build `children`."""
        found = node
        try:
            while True:
                found = self.tokens.index(token, found + 1)
                if self.parents[found] == node:
                    return found
        except ValueError:
            return None

    def path_to(self, node: int) -> tuple[int, ...]:
        """The nodes from a child of the root down to `node`; () for ROOT."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def find(self, path: Sequence[int]) -> int | None:
        """The node that a path of tokens leads to; ROOT for (), None if it leaves the tree."""
        nodes = self.along(path)
        return None if len(nodes) < len(path) else nodes[-1] if nodes else ROOT

    def along(self, tokens: Sequence[int], at: int = ROOT) -> list[int]:
        """The nodes along `tokens` from node `at` down, until they leave the tree."""
        nodes: list[int] = []
        for token in tokens:
            child = self.children.get(nodes[-1] if nodes else at, {}).get(token)
            if child is None:
                break
            nodes.append(child)
        return nodes

    def graft(self, other: Tree, at: int = ROOT) -> Tree:
        """Append `other`, with node `at` as its root; its nodes come after the present ones.

        If only one side has weights, the other counts as certain (1.0); if only one has sources,
        the other has none. Grafted weights are scaled by the weight of node `at`.

        Raises ValueError if there is no node `at`.
        """
        if not ROOT <= at < len(self):
            raise ValueError(f"there is no node {at} to graft at")
        shift = len(self)
        parents = tuple(at if parent == ROOT else parent + shift for parent in other.parents)
        weights = None
        if self.weights is not None or other.weights is not None:
            mine = self.weights or (1.0,) * len(self)
            scale = 1.0 if at == ROOT else mine[at]
            weights = mine + tuple(w * scale for w in other.weights or (1.0,) * len(other))
        sources = None
        if self.sources is not None or other.sources is not None:
            sources = (self.sources or (0,) * len(self)) + (other.sources or (0,) * len(other))
        return Tree(self.tokens + other.tokens, self.parents + parents, weights, sources)

    def marked(self, source: int) -> Tree:
        """The same tree, proposed by the source of this number."""
        return replace(self, sources=(1 << source,) * len(self))

    def merge(self) -> Tree:
        """Merge equal siblings, recursively; the merged node keeps the larger weight. With sources,
        it has them all and is likelier than each of them claims, see `paceline.union`."""
        if self.sources is not None:
            union = Union()
            union.add(self.tokens, self.parents, self.claims, self.sources)
            merged = Tree.of_union(union)
            return merged if self.weights is not None else replace(merged, weights=None)
        kept: dict[tuple[int, int], int] = {}
        place, weights = {ROOT: ROOT}, [-inf] * len(self)
        for node, weight in enumerate(self.weights or (1.0,) * len(self)):
            own = kept.setdefault((place[self.parents[node]], self.tokens[node]), len(kept))
            weights[own] = max(weights[own], weight)
            place[node] = own
        return Tree(
            tuple(token for _, token in kept),
            tuple(parent for parent, _ in kept),
            None if self.weights is None else tuple(weights[: len(kept)]),
        )

    def prune(self, size: int) -> Tree:
        """The `size` nodes most likely to be accepted, or the first ones if weights are unknown. A
        node counts at most as much as its weakest ancestor, so none is kept without its parent."""
        size = max(size, 0)
        if size >= len(self):
            return self
        if self.weights is None:
            return self.keep(range(size))
        path_chances: list[float] = []
        for node, parent in enumerate(self.parents):
            above = 1.0 if parent == ROOT else path_chances[parent]
            path_chances.append(min(self.weights[node], above))
        best = sorted(range(len(self)), key=lambda node: -path_chances[node])[:size]
        return self.keep(sorted(best))

    def spine(self) -> Tree:
        """The chain from each node to its heaviest child; to the first if they are equal or weights
        are unknown."""
        nodes: list[int] = []
        weights = self.weights or (0.0,) * len(self)
        while children := self.children.get(nodes[-1] if nodes else ROOT):
            nodes.append(max(children.values(), key=lambda node: weights[node]))
        return self.keep(nodes)

    def clip(self, depth: int) -> Tree:
        """The nodes at most `depth` below the root."""
        if len(self) <= depth:
            return self
        return self.keep([node for node, d in enumerate(self.depths) if d <= depth])

    def keep(self, nodes: Sequence[int]) -> Tree:
        """The subtree of some nodes, given in ascending order, which must include their parents.

        Raises ValueError if a parent is missing.
        """
        if len(nodes) == len(self):  # then they are all of them, in order
            return self
        place = {node: index for index, node in enumerate(nodes)}
        place[ROOT] = ROOT
        if orphans := [node for node in nodes if self.parents[node] not in place]:
            raise ValueError(f"the parents of nodes {orphans} are not kept")
        return Tree.of_columns(
            tuple([self.tokens[node] for node in nodes]),
            tuple([place[self.parents[node]] for node in nodes]),
            None if self.weights is None else tuple([self.weights[node] for node in nodes]),
            None if self.sources is None else tuple([self.sources[node] for node in nodes]),
        )


EMPTY = Tree()
