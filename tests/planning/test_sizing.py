"""Sizes against trying all of them, and all prefix-closed sets of nodes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from tests.helpers import trees
from tests.planning.test_cost_curve import CLIFF, curve_of, curves

from paceline.planning.calibration import Calibration
from paceline.planning.cost_curve import CostCurve
from paceline.planning.sizing import best_chain, best_count, best_first
from paceline.tree import ROOT, Tree


def closed_sets(tree: Tree, size: int) -> list[tuple[int, ...]]:
    return [
        nodes
        for nodes in combinations(range(len(tree)), size)
        if all(tree.parents[node] in (ROOT, *nodes) for node in nodes)
    ]


@given(trees(max_size=7, weighted=True), curves)
def test_no_other_nodes_gain_more_per_millisecond(tree: Tree, curve: CostCurve) -> None:
    path_chances = Calibration().path_chances(tree)
    best = max(
        (1 + sum(path_chances[node] for node in nodes)) / curve.cost(1 + size)
        for size in range(len(tree) + 1)
        for nodes in closed_sets(tree, size)
    )
    costs = [curve.cost(width) for width in range(1, len(tree) + 2)]
    ranked = [node for _, node in best_first([(0, path_chances)])]
    assert ranked == [node for key, node in best_first([(0, path_chances), (1, [])])]
    size = best_count(1.0, [path_chances[node] for node in ranked], costs)
    kept = ranked[:size]
    tree.keep(sorted(kept))  # raises where a parent is missing
    assert (1 + sum(path_chances[node] for node in kept)) / costs[size] == pytest.approx(best)


def test_the_likeliest_nodes_of_all_texts_come_first() -> None:
    """Each node is a row of the pass, whichever text it belongs to."""
    trees = {4: [0.5, 0.25], 7: [0.9], 9: []}
    ranked = best_first(list(trees.items()))
    assert ranked == [(7, 0), (4, 0), (4, 1)]
    path_chances = [trees[key][node] for key, node in ranked]
    # 3.0, 3.9, 4.4 and 4.65 tokens.
    assert best_count(3.0, path_chances, [30.0, 40.0, 45.0, 46.0]) == 3
    assert best_count(3.0, path_chances, [30.0, 40.0, 43.0, 47.0]) == 2
    assert best_count(3.0, path_chances, [30.0, 40.0, 45.0, 50.0]) == 0


@pytest.mark.parametrize(
    ("costs", "acceptance", "expected"),
    [
        (CLIFF, 0.9, 15),
        (CLIFF, 0.05, 0),  # a guess that is seldom right is not worth the cliff
        (CLIFF, 0.3, 3),  # beyond it
        ({1: 10.0, 2: 20.0, 3: 30.0}, 0.9, 0),
        ({1: 10.0, 65: 10.0}, 0.9, 64),
    ],
)
def test_the_best_chain(costs: dict[int, float], acceptance: float, expected: int) -> None:
    assert best_chain(curve_of(costs), acceptance) == expected
