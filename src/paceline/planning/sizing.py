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


def best_first(reach: Sequence[float]) -> list[int]:
    """Nodes from the likeliest to the least likely one, parents before their children.

    reach: how likely each node of a tree is to be accepted, never more than its parent; so the
    first n are the n nodes of most expected tokens, whatever n.
    """
    return sorted(range(len(reach)), key=lambda node: (-reach[node], node))


def gains(reaches: Sequence[Sequence[float]], most: int) -> Vector:
    """Expected tokens [most + 1] of a pass over all texts, by the nodes per tree: 0, 1, …, most.

    reaches: one per text. A pass is as wide as its widest tree, so every tree may have as many
    nodes as the widest one; a text without so many keeps what it has.
    """
    total = np.full(most + 1, float(len(reaches)))
    for reach in reaches:
        likeliest = np.zeros(most)
        kept = sorted(reach, reverse=True)[:most]
        likeliest[: len(kept)] = kept
        total[1:] += likeliest.cumsum()
    return total


def rates(gained: Vector, costs: Vector) -> Vector:
    """Tokens per millisecond by the nodes per tree.

    gained: see `gains`. costs: milliseconds of passes over 1, 2, … rows, as many.

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
    return int(np.argmax(rates(gains([reach], most), costs)))
