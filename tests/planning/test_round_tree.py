"""Trees of one round: against all trees that there are, and where they must be narrow or wide."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.tables import VICUNA, curve

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.calibration import ShareChances
from paceline.planning.candidate_tree import likeliest
from paceline.planning.ppd import round_tree
from paceline.planning.ppd.adaptive_tree import AdaptiveTree
from paceline.planning.ppd.dynamic_tree import StateTree
from paceline.planning.ppd.round_tree import Prospects, best_tree, prospects_of
from paceline.planning.ppd.tree_search import build_tree

CHANCES = st.lists(st.lists(st.floats(0.01, 0.4), min_size=2, max_size=2), min_size=0, max_size=2)


def expected(cost: float) -> Prospects:
    """What is known of a machine where every row costs so much of a pass."""
    adaptive = AdaptiveTree(VICUNA, curve(cost))
    adaptive.fitting(63)
    return adaptive.prospects


def value(tree: StateTree, prospects: Prospects) -> float:
    """Of this round's tokens and what the next ones begin with, less the time of its rows."""
    last = tree.candidates.last
    ahead = sum(share * prospects.worth[prompts] for share, prompts in zip(last, tree.prompts))
    ahead += (1 - last.sum()) * prospects.worth[tree.root_prompts]
    return float(tree.candidates.expected + ahead - prospects.prices[tree.width - 1])


@given(
    chances=CHANCES,
    steps=st.lists(st.floats(0, 0.5), min_size=2, max_size=2),
    rows=st.lists(st.floats(0.0, 0.3), min_size=8, max_size=8),
    epts=st.integers(1, 2),
)
def test_no_other_tree_of_the_likeliest_guesses_is_worth_more(
    chances: list[list[float]], steps: list[float], rows: list[float], epts: int
) -> None:
    steps.sort(reverse=True)
    prospects = Prospects(np.array([0.0, steps[0], sum(steps)]), 1 + np.cumsum(rows))
    found = best_tree(chances, prospects, 7, epts)
    best, most = -np.inf, round_tree._PATIENCE  # that many guesses are always looked at
    for count in range(min(most, len(likeliest(chances, most))) + 1):
        guesses = likeliest(chances, count)
        for root, *others in product(range(3), repeat=1 + count):
            tree = StateTree(guesses, tuple(others), root, epts)
            if tree.width <= 8:
                best = max(best, value(tree, prospects))
    assert value(found, prospects) >= best - 1e-9
    assert found.width <= 8


def test_sure_guesses_make_wide_trees_and_unsure_ones_none() -> None:
    prospects = expected(0.05)
    sure = best_tree([[0.9, 0.05], [0.8, 0.1], [0.6, 0.1]], prospects, 63)
    unsure = best_tree([[0.05, 0.04], [0.03, 0.02], [0.01, 0.01]], prospects, 63)
    assert len(sure.candidates) >= 3 and sum(sure.prompts) >= 1
    assert len(unsure.candidates) == 0 and unsure.root_prompts >= 1
    # Nothing is known yet: prompt tokens for the next round.
    assert best_tree([], prospects, 63).root_prompts >= 1
    assert best_tree([], prospects, 0).width == 1


def test_rows_that_cost_more_are_fewer() -> None:
    chances = [list(row) for row in VICUNA.rows]
    widths = [best_tree(chances, expected(cost), 63).width for cost in (0.001, 0.02, 0.08, 3.0)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 64 and widths[-1] == 1


def test_the_average_round_is_worth_no_less_than_with_the_average_tree() -> None:
    """Nothing is known of it but the table."""
    for cost in (0.001, 0.02, 0.05):
        adaptive = AdaptiveTree(VICUNA, curve(cost))
        average = adaptive.fitting(63)
        assert average is not None
        used = average.prompt_tokens
        round = best_tree(VICUNA.rows[:used], adaptive.prospects, 63)
        known = Prospects(adaptive.prospects.worth[: used + 1], adaptive.prospects.prices)
        assert value(round, adaptive.prospects) >= value(average.states[-1], known) - 1e-9


@pytest.mark.parametrize("rows", [((0.5, 0.1),), ((0.4, 0.2), (0.2, 0.1), (0.1, 0.05))])
def test_more_prompt_tokens_are_worth_no_less(rows: tuple[tuple[float, ...], ...]) -> None:
    prospects = prospects_of(build_tree(AcceptanceTable(rows), 8), curve(0.02))
    steps = np.diff(prospects.worth)
    assert (steps >= 0).all() and (np.diff(steps) <= 1e-12).all()
    assert prospects.worth[-1] == pytest.approx(0.0)
    assert (np.diff(prospects.prices) > 0).all()


def test_shares_are_worth_what_came_of_them() -> None:
    chances = ShareChances(2)
    assert chances.of([[0.8, 0.1], [0.5]]) == [[0.8, 0.1], [0.5]]
    for _ in range(300):
        chances.learn(1, 0, [0.8, 0.1])
        chances.learn(2, None, [0.8, 0.1])
    (near, low), (far, _) = chances.of([[0.8, 0.1], [0.8, 0.1]])
    assert near > 0.95 and low < 0.05 and far < 0.05
