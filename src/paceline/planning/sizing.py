"""The size that gains most: expected tokens of a pass over what the pass costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.planning.cost_curve import CostCurve

__all__ = ["MOST_WHOLE", "best_chain", "best_first", "gains", "rates"]

MOST_WHOLE = 1024
"""Drafters whose trees stay whole are asked for so many nodes at most: they know themselves how
many are worth it, or were told."""

Vector = NDArray[np.float64]


def best_first(reaches: Sequence[tuple[int, Sequence[float]]]) -> list[tuple[int, int]]:
    """Nodes of several trees, each as (its tree's key, node), from the likeliest to the least
    likely one; parents before their children.

    reaches: keys with how likely each node of that tree is to be accepted, never more than its
    parent; so the first n are the n nodes of most expected tokens, whatever n.
    """
    nodes = [(-reach, key, node) for key, tree in reaches for node, reach in enumerate(tree)]
    return [(key, node) for _, key, node in sorted(nodes)]


def gains(sure: float, reach: Sequence[float]) -> Vector:
    """Expected tokens [len(reach) + 1] of a pass, by how many nodes it has: 0, 1, …

    sure: without any of them. reach: how likely each is to be accepted, best first.
    """
    return sure + np.concatenate([[0.0], np.cumsum(np.asarray(reach, dtype=np.float64))])


def rates(gained: Vector, costs: Vector) -> Vector:
    """Tokens per millisecond by the number of nodes.

    gained: see `gains`. costs: milliseconds of the passes, as many.

    No assumption is made about their order: costs are not monotone, and a few nodes more may make
    a pass cheaper.
    """
    found: Vector = gained / costs
    return found


def best_chain(curve: CostCurve, acceptance: float, most: int = 64) -> int:
    """Guesses that gain most on a device where each is right with probability `acceptance` if the
    one before it was; 0 where guessing does not pay."""
    reach = [acceptance**depth for depth in range(1, most + 1)]
    costs = np.array([curve.cost(width) for width in range(1, most + 2)])
    return int(np.argmax(rates(gains(1.0, reach), costs)))
