"""The tree of one round of PPD, sized by the confidence of its guesses.

A dynamic sparse tree (`paceline.planning.ppd.dynamic_tree`) has the shape of the average round.
Here guesses have the chances of this round, and every row must be worth its time: a guess by the
tokens expected from it now, a prompt token by what its guesses bring later. So a doubtful round is
narrow, and a confident one wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf

import numpy as np

from paceline.planning.candidate_tree import likeliest
from paceline.planning.cost_curve import CostCurve
from paceline.planning.ppd.dynamic_tree import DynamicTree, StateTree, Vector

_MOST_GUESSES = 32
_WIDEST = 96
_PATIENCE = 3
"""The search stops after this many larger numbers of guesses in a row without a gain."""


@dataclass(frozen=True)
class Prospects:
    """What future rounds are expected to bring, in tokens.

    worth: [m + 1], what it is worth to begin the next round with 0, 1, … m prompt tokens after the
    root, relative to m; no increase is larger than the one before.
    prices: [most rows], long-run tokens in the time of a pass of 1, 2, … rows.
    """

    worth: Vector
    prices: Vector

    @cached_property
    def steps(self) -> list[float]:
        """[m]: what the first, second, … prompt token after the next root adds to `worth`."""
        return list(np.diff(self.worth).tolist())

    @cached_property
    def costs(self) -> list[float]:
        """The prices as a list, which is faster to read one by one."""
        return list(self.prices.tolist())

    @cached_property
    def least(self) -> float:
        """A guess less likely than this cannot pay: the most it can bring, in this round and later
        ones, is less than the price of the cheapest row."""
        span = float(self.worth[-1] - self.worth[0])
        return max(0.0, float(np.diff(self.prices).min())) / (1 + span)


def prospects_of(tree: DynamicTree, curve: CostCurve, rate: float = 0.0) -> Prospects:
    """What the average trees promise on this machine: the relative values of a semi-Markov decision
    process (Howard 1960, chapter 4; Puterman 1994, chapter 11.4).

    rate: tokens per millisecond that are achievable in the long run, if more than those of the tree
    and of plain decoding.
    """
    costs = np.array([curve.cost(state.width) for state in tree.states])
    gained = 1 + tree.accepted
    own = float(tree.steady_state @ gained / (tree.steady_state @ costs))
    rate = max(rate, own, 1 / curve.cost(1))
    # worth = gained - rate x costs + transitions @ worth, and worth[m] = 0.
    equations = np.eye(len(costs)) - tree.transitions
    equations[-1] = np.eye(len(costs))[-1]
    worth = np.linalg.solve(equations, np.append((gained - own * costs)[:-1], 0.0))
    steps = np.minimum.accumulate(np.maximum(np.diff(worth), 0.0))
    prices = rate * np.array([curve.cost(width) for width in range(1, _WIDEST + 1)])
    return Prospects(np.append(0.0, steps.cumsum()) - steps.sum(), prices)


def best_tree(
    chances: Sequence[Sequence[float]], prospects: Prospects, most: int, epts: int = 1
) -> StateTree:
    """The tree that gains most tokens for the time of its pass, tokens of later rounds included.

    chances: of the guesses at distances 1, 2, …, one row per prompt token that was read, by rank;
    guesses of a path count as independent (PPD, proposition 5.6.1).
    most: nodes. epts: rows per prompt token.
    """
    steps, prices = prospects.steps, prospects.costs
    most = min(most, len(prices) - 1)
    guesses = likeliest(chances, min(most, _MOST_GUESSES), prospects.least)
    # The chances that the accepted path ends at the root, and at each guess.
    ends, expected = [1.0], 0.0
    best, worth, places, taken = 0, -inf, list[int](), 0
    for count in range(len(guesses) + 1):
        if count > best + _PATIENCE:
            break
        if count:
            chance = guesses.path_chances[count - 1]
            ends[1 + guesses.parents[count - 1]] -= chance
            ends.append(chance)
            expected += chance
        gains = [end * step for end in ends for step in steps]
        order = sorted(range(len(gains)), key=gains.__getitem__, reverse=True)
        sums = accumulate(map(gains.__getitem__, order), initial=expected)
        for prompts, (value, price) in enumerate(zip(sums, prices[count : most + 1 : epts])):
            if value - price > worth:
                best, worth, places, taken = count, value - price, order, prompts
    nodes = [place // len(steps) for place in places[:taken]]
    root, *others = (nodes.count(node) for node in range(1 + best))
    return StateTree(guesses.first(best), tuple(others), root, epts)
