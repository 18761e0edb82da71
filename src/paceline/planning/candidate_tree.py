"""The likeliest guesses after the root, as paths of ranks.

A candidate says "the second likeliest guess for the next token, then the likeliest one for the
token after it". Which tokens these are is known only when the tree is used.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.tree import ROOT, Tree

Ranks = tuple[int, ...]
"""The rank of the guess at each depth on the way from the root to a node; 0 is the likeliest."""


@dataclass(frozen=True)
class CandidateTree:
    """A tree of guesses, parents before their children.

    paths: n different paths of ranks.
    path_chances: n probabilities that a node and all its ancestors are right.
    """

    paths: tuple[Ranks, ...] = ()
    path_chances: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Each node's parent index, or ROOT, as in `Tree.parents`."""
        places = {path: node for node, path in enumerate(self.paths)}
        return tuple(places[path[:-1]] if len(path) > 1 else ROOT for path in self.paths)

    @cached_property
    def expected(self) -> float:
        """Expected number of accepted nodes, f(T) of PPD's proposition 5.6.1."""
        return float(sum(self.path_chances))

    @cached_property
    def last(self) -> NDArray[np.float64]:
        """[n]: the probability that a node is right and none of its children is."""
        path_chances, parents = np.array(self.path_chances), np.array(self.parents, dtype=np.intp)
        inner = parents != ROOT
        below = np.bincount(parents[inner], weights=path_chances[inner], minlength=len(self))
        # A row of the table may sum to slightly more than 1.
        return np.maximum(path_chances - below, 0.0)

    def tree(self, guesses: Sequence[Sequence[int]]) -> Tree:
        """The same of these tokens, by distance and rank."""
        tokens = tuple([guesses[len(path) - 1][path[-1]] for path in self.paths])
        return Tree(tokens, self.parents, self.path_chances)

    def first(self, count: int) -> CandidateTree:
        """The first `count` nodes, or all if there are fewer."""
        return CandidateTree(self.paths[:count], self.path_chances[:count])


def likeliest(chances: Sequence[Sequence[float]], count: int, least: float = 0.0) -> CandidateTree:
    """The `count` likeliest paths of guesses, likeliest first.

    chances: of the guesses at depths 1, 2, …, each by rank; those of a depth that sum to more than
    1 are scaled down.

        chances .5 .2 | .4 .1, count 4:  0 (.5)   1 (.2)   0,0 (.2)   1,0 (.08)

    The chance of a path is the product of its guesses' chances, as if they were independent (PPD,
    proposition 5.6.1; Medusa and Sequoia build their trees this way too). Equally likely paths are
    in lexical order. Paths no likelier than `least` are left out, so there may be fewer than
    `count`.

    Every prefix of the list is the best tree of its size: no path is likelier than its parent.
    """
    scales = [max(1.0, sum(row)) for row in chances]
    rows = [[chance / scale for chance in row] for row, scale in zip(chances, scales)]
    orders = [sorted(range(len(row)), key=row.__getitem__, reverse=True) for row in rows]
    # An entry is minus the probability of a path, the path, the place of its last rank in the order
    # of its row, and minus the probability of its parent. An entry that leaves the heap is replaced
    # by its next sibling and its first child.
    heap: list[tuple[float, Ranks, int, float]] = []

    def offer(above: float, path: Ranks, place: int) -> None:
        depth = len(path)
        if depth < len(rows) and place < len(rows[depth]):
            rank = orders[depth][place]
            found = above * rows[depth][rank]
            if found < -least:
                heapq.heappush(heap, (found, (*path, rank), place, above))

    paths: list[Ranks] = []
    path_chances: list[float] = []
    offer(-1.0, (), 0)
    while heap and len(paths) < count:
        found, path, place, above = heapq.heappop(heap)
        paths.append(path)
        path_chances.append(-found)
        offer(above, path[:-1], place + 1)
        offer(found, path, 0)
    return CandidateTree(tuple(paths), tuple(path_chances))
