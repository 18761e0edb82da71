"""The search for the best tree: against the official code's trees, and against all there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.tables import VICUNA, tables

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.candidate_tree import likeliest
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.ppd.dynamic_tree import DynamicTree, StateTree, allocate_prompts
from paceline.planning.ppd.tree_search import build_tree, fastest, survey_widths


def paper_trees(
    table: AcceptanceTable, size: int, ranges: list[range], floor: int = 1
) -> Iterator[DynamicTree]:
    """The trees of all combinations of numbers of guesses, with prompt tokens as in the paper's
    proposition 5.6.3: by the difference of f(T_i) and f(T_{i-1})."""
    for counts in product(*ranges):
        candidates = [
            likeliest(table.rows[:depth], count) for depth, count in enumerate((0, *counts))
        ]
        worth = np.array([tree.expected for tree in candidates])
        yield DynamicTree(
            tuple(
                StateTree(
                    tree,
                    allocate_prompts(tree.last, worth, size - len(tree), floor),
                    table.distances,
                )
                for tree in candidates
            )
        )


def phantom_objective(tree: DynamicTree) -> float:
    """What the official code computes: "nothing accepted" is a round of its own, which gains
    nothing and leads to the state with all prompt tokens."""
    most = tree.prompt_tokens
    chances = np.zeros((most + 1, most + 1))
    chances[0, most] = 1
    for state in range(1, most + 1):
        own = tree.states[state]
        np.add.at(chances[state], list(own.prompts), own.candidates.last)
        chances[state, 0] = 1 - own.candidates.last.sum()
    equations = chances.T - np.eye(most + 1)
    equations[0] = 1
    return float(np.linalg.solve(equations, np.eye(most + 1)[0]) @ tree.accepted)


OFFICIAL = {
    60: ([{3: 10}, {2: 20}, {2: 20}], 1.062, 1.245),
    105: ([{3: 10}, {2: 27, 3: 6}, {2: 31, 3: 3}], 1.184, 1.367),
}


@pytest.mark.parametrize("size", OFFICIAL)
def test_the_trees_of_the_official_code_come_out(size: int) -> None:
    prompts, phantom, merged = OFFICIAL[size]
    tree = build_tree(VICUNA, size)  # the official code takes 5 s and 40 s
    assert [Counter(state.prompts) for state in tree.states[1:]] == prompts
    assert [state.width for state in tree.states] == [4, 44, size + 4, size + 4]
    assert tree.tokens_per_pass - 1 == pytest.approx(merged, abs=5e-4)
    assert phantom_objective(tree) == pytest.approx(phantom, abs=5e-4)


@pytest.mark.parametrize("size", OFFICIAL)
def test_the_official_search_finds_them_too(size: int) -> None:
    """All combinations, the paper's rule and the official objective: the tree is the same one."""
    ranges = [range(10, 11), *[range(size // 4, size // 2 + 1)] * 2]
    found = max(paper_trees(VICUNA, size, ranges), key=phantom_objective)
    built = build_tree(VICUNA, size)
    assert [(state.candidates.paths, state.prompts) for state in found.states] == [
        (state.candidates.paths, state.prompts) for state in built.states
    ]


@given(table=tables(max_distances=3), size=st.integers(2, 8), floor=st.integers(0, 1))
@settings(max_examples=50)
def test_no_combination_is_better(table: AcceptanceTable, size: int, floor: int) -> None:
    tree = build_tree(table, size, floor)
    ranges = [range(1, size // (1 + floor) + 1)] * table.distances
    best = max(other.tokens_per_pass for other in paper_trees(table, size, ranges, floor))
    assert tree.tokens_per_pass >= best - 1e-6


@given(table=tables(max_distances=8, max_ranks=3), size=st.integers(2, 40), floor=st.integers(0, 1))
def test_a_tree_fits_for_any_number_of_prompt_tokens(
    table: AcceptanceTable, size: int, floor: int
) -> None:
    tree = build_tree(table, size, floor)
    most = table.distances
    assert tree.prompt_tokens == most and len(tree.states[0].candidates) == 0
    for depth, state in enumerate(tree.states):
        assert state.root_prompts == most
        assert state.width <= size + 1 + most
        assert len(state.prompts) == len(state.candidates)
        assert all(floor <= count <= most for count in state.prompts)
        assert all(len(path) <= depth for path in state.candidates.paths)


@given(table=tables(max_distances=3), size=st.integers(2, 20))
def test_more_room_and_a_lower_floor_are_never_worse(table: AcceptanceTable, size: int) -> None:
    gained = build_tree(table, size).tokens_per_pass
    assert build_tree(table, size + 2).tokens_per_pass >= gained - 1e-6
    assert build_tree(table, size, floor=0).tokens_per_pass >= gained - 1e-6


def test_without_a_floor_small_trees_have_one_guess_more() -> None:
    gained = [build_tree(VICUNA, 3, floor).tokens_per_pass for floor in (1, 0)]
    assert gained == pytest.approx([1.4834, 1.5482], abs=1e-4)


@pytest.mark.parametrize(("size", "floor"), [(0, 1), (1, 1), (0, 0), (9, -1), (9, 4)])
def test_sizes_without_room_are_refused(size: int, floor: int) -> None:
    with pytest.raises(ValueError, match=r"floor must be|needs room"):
        build_tree(VICUNA, size, floor)


def curve(cost: float) -> CostCurve:
    """20 ms and `cost` for every row."""
    widths = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
    return CostCurve(tuple(CostPoint(width, 128, 20 + cost * width) for width in widths))


def test_the_machine_decides_on_the_size() -> None:
    survey = survey_widths(VICUNA, curve(0.01))
    # The narrowest tree: the root, a prompt token after it, a guess and one after that.
    assert [fitted.width for fitted in survey] == [4, 6, 8, 12, 16, 24, 32, 64, 128]
    for fitted in survey:
        assert max(state.width for state in fitted.tree.states) <= fitted.width
        assert fitted.speedup == fitted.tree.speedup(curve(0.01))
    cheap, costly = fastest(survey), fastest(survey_widths(VICUNA, curve(1.0)))
    assert cheap is not None and costly is not None
    assert cheap.width == 128 and cheap.tree.prompt_tokens == 3
    assert costly.width == 6 and costly.tree.prompt_tokens == 1
    assert cheap.speedup > costly.speedup > 1


def test_where_rows_are_as_costly_as_passes_nothing_is_guessed() -> None:
    assert fastest(survey_widths(VICUNA, curve(100.0))) is None
    assert fastest([]) is None


def test_widths_can_be_named() -> None:
    assert [fitted.width for fitted in survey_widths(VICUNA, curve(1), (3, 5, 40))] == [5, 40]
    assert [fitted.width for fitted in survey_widths(VICUNA, curve(1), (3, 5), floor=0)] == [3, 5]
