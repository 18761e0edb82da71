"""The best size of a tree: most expected tokens per pass for the cost of the pass."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.planning.cost_curve import CostCurve

MOST_WHOLE = 1024
"""Most nodes asked of a drafter whose trees stay whole: it knows how many pay, or was told."""
_LONGEST = 64
_FEW, _FORGOTTEN = 4, 0.9


class Used:
    """How many nodes of trees are used, the largest recently."""

    def __init__(self) -> None:
        self._nodes = 6.0

    def scored(self, nodes: int) -> None:
        """Record the nodes of a scored tree."""
        self._nodes = max(nodes, self._nodes * _FORGOTTEN)

    @property
    def enough(self) -> int:
        """How many to ask for: about twice as many as were used, as drafting takes time, too."""
        return _FEW + round(2 * self._nodes)


def best_first(trees: Sequence[tuple[int, Sequence[float]]]) -> list[tuple[int, int]]:
    """Nodes of several trees, as (key, node), likeliest first; parents come before their children.

    trees: keys, and how likely each node of that tree is to be accepted, never more than its
    parent; so for any n the first n nodes have the most expected tokens.
    """
    nodes = [(-chance, key, node) for key, tree in trees for node, chance in enumerate(tree)]
    return [(key, node) for _, key, node in sorted(nodes)]


def best_count(sure: float, path_chances: Sequence[float], costs: Sequence[float]) -> int:
    """How many nodes gain most tokens per millisecond; the smallest of equally good numbers.

    sure: expected tokens without any of them. path_chances: how likely each is to be accepted, best
    first. costs: milliseconds [len(path_chances) + 1] of passes with 0, 1, … of them.

    Costs need not be monotone: a few more nodes may make a pass cheaper.
    """
    best, most, gained = 0, sure / costs[0], sure
    for count, share in enumerate(path_chances, start=1):
        gained += share
        rate = gained / costs[count]
        if rate > most:
            best, most = count, rate
    return best


def best_chain(curve: CostCurve, acceptance: float) -> int:
    """The best number of guesses on a device, at most 64, if each is right with probability
    `acceptance` after a right one; 0 if guessing does not pay."""
    path_chances = [acceptance**depth for depth in range(1, _LONGEST + 1)]
    return best_count(1.0, path_chances, [curve.cost(width) for width in range(1, _LONGEST + 2)])
