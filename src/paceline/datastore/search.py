"""Look up how texts continued, without the C library.

`kernels/native/src/suffixes.c` gives the same answers faster; tests compare the two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.datastore.sorting import BORDER, LONGEST, Int32
from paceline.tree import EMPTY, ROOT, Tree

MOST_HITS = 256


@dataclass(frozen=True)
class Search:
    """The parameters of a search.

    least: tokens that must match, at least 1.
    hits: most places to look at, 1 to 256; of more, an even sample.
    depth: most levels of the tree, at least 1. branches: most children of a node, at least 1.
    per_match: most nodes per matching token; 0 for no limit.
    doubt: a token that followed `seen` of `total` times after `run` matching tokens gets the chance
    seen / total * seen / (seen + doubt / run**2).
    """

    least: int = 1
    hits: int = 64
    depth: int = 32
    branches: int = MOST_HITS
    per_match: int = 0
    doubt: float = 3.0


ANYTHING = Search()


class Found(NamedTuple):
    """How texts continued after the longest suffix of a tail that occurs in them.

    matched: the suffix's length, 0 if none occurs. shorter: length of the longest suffix that
    occurs in more places, 0 for none. begin, end: range of the places after the match, in the
    order. tree: what follows there, likeliest first, of equals the newest; weights are path
    chances.
    """

    matched: int
    shorter: int
    begin: int
    end: int
    tree: Tree

    @property
    def places(self) -> int:
        """Number of places after the match."""
        return self.end - self.begin


NOTHING = Found(0, 0, 0, 0, EMPTY)


class _Group(NamedTuple):
    """Places that continue alike: with `token` at `depth`, as a child of the node `parent`."""

    weight: float
    newest: int
    token: int
    depth: int
    parent: int
    places: list[int]


def look_up(tokens: Int32, order: Int32, tail: Sequence[int], budget: int, search: Search) -> Found:
    """Search as `Found` describes; the tree has at most `budget` nodes."""
    wanted = list(reversed(tail[-LONGEST:]))
    at = bisect_left(order, wanted, key=lambda place: _before(tokens, int(place), len(wanted)))

    def matching(where: int) -> int:
        """Return how many of the tail's last tokens precede the place at `where` in the order."""
        if not 0 <= where < len(order):
            return 0
        pairs = zip(_before(tokens, int(order[where]), len(wanted)), wanted, strict=True)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), len(wanted))

    matched = max(matching(at - 1), matching(at))
    if matched < search.least:
        return NOTHING
    run = wanted[:matched]
    begin = bisect_left(order, run, key=lambda place: _before(tokens, int(place), matched))
    after = [*run[:-1], run[-1] + 1]
    end = bisect_left(order, after, key=lambda place: _before(tokens, int(place), matched))
    shorter = max(matching(begin - 1), matching(end))
    count = min(end - begin, search.hits)
    budget = min(budget, search.per_match * matched or budget)
    hits = [int(order[begin + i * (end - begin) // count]) for i in range(count)]
    return Found(matched, shorter, begin, end, _tree(tokens, hits, matched, budget, search))


def insert_place(tokens: Int32, order: Int32, place: int) -> None:
    """Insert a place into the order, whose last entry is free for it."""
    own = (_before(tokens, place, LONGEST), place)
    rank = bisect_left(
        order[:-1], own, key=lambda one: (_before(tokens, int(one), LONGEST), int(one))
    )
    order[rank + 1 :] = order[rank:-1].copy()
    order[rank] = place


def _before(tokens: Int32, place: int, count: int) -> list[int]:
    """Return the last tokens before a place, read backwards; from a border on, all are borders."""
    near: list[int] = tokens[max(0, place - count) : max(0, place)].tolist()[::-1]
    if BORDER in near:
        del near[near.index(BORDER) :]
    return near + [BORDER] * (count - len(near))


def _tree(tokens: Int32, hits: list[int], matched: int, budget: int, search: Search) -> Tree:
    """Return the likeliest continuations of these places, best first."""
    nodes: list[_Group] = []
    children: dict[int, int] = {}
    frontier = _followers(tokens, _Group(1.0, 0, 0, 0, ROOT, hits), ROOT, matched, search)
    while frontier and len(nodes) < budget:
        best = max(frontier, key=lambda group: (group.weight, group.newest))
        frontier.remove(best)
        if children.get(best.parent, 0) >= search.branches:
            continue
        children[best.parent] = children.get(best.parent, 0) + 1
        if best.depth < search.depth:
            frontier += _followers(tokens, best, len(nodes), matched, search)
        nodes.append(best)
    return Tree(
        tuple(node.token for node in nodes),
        tuple(node.parent for node in nodes),
        tuple(node.weight for node in nodes) or None,
    )


def _followers(
    tokens: Int32, above: _Group, node: int, matched: int, search: Search
) -> list[_Group]:
    """Group the places of `above` by the next token; `node` is the number of `above`."""
    following: dict[int, list[int]] = {}
    for place in above.places:
        at = place + above.depth
        if 0 <= at < len(tokens) and tokens[at] >= 0:
            following.setdefault(int(tokens[at]), []).append(place)
    total = sum(map(len, following.values()))
    run = matched + above.depth
    groups = []
    for token, places in following.items():
        seen = len(places)
        share = seen / total * seen / (seen + search.doubt / run**2)
        weight = above.weight * share
        groups.append(_Group(weight, max(places), token, above.depth + 1, node, places))
    return groups
