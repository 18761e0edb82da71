"""Sizes by cost, tables that follow what is seen, and shapes of passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.tables import VICUNA, curve, tables

from paceline.planning.acceptance import AcceptanceTable, unmeasured
from paceline.planning.candidate_tree import CandidateTree
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.ppd import adaptive_tree
from paceline.planning.ppd.adaptive_tree import AdaptiveTree, Limits
from paceline.planning.ppd.dynamic_tree import StateTree
from paceline.planning.ppd.tree_search import FittedTree, build_tree, survey_widths
from paceline.tree import ROOT


def width(tree: AdaptiveTree, budget: int) -> int:
    found = tree.fitting(budget)
    return 0 if found is None else max(state.width for state in found.states)


@given(
    table=tables(max_distances=3),
    size=st.sampled_from([0, 6, 9, 30]),
    epts=st.integers(1, 5),
    budget=st.integers(-2, 70),
)
def test_no_tree_has_more_nodes_than_there_may_be(
    table: AcceptanceTable, size: int, epts: int, budget: int
) -> None:
    found = AdaptiveTree(table, None, Limits(size, epts=epts)).fitting(budget)
    # The least: a prompt token after the root, a guess, a prompt token after that.
    assert (found is None) == (budget < 1 + 2 * epts)
    if found is not None:
        for state in found.states:
            assert state.width - 1 <= budget and state.epts == epts


def test_a_named_size_is_the_papers() -> None:
    assert AdaptiveTree(VICUNA, limits=Limits(60)).fitting(64) == build_tree(VICUNA, 60)
    assert AdaptiveTree(VICUNA, limits=Limits(60)).fitting(1000) == build_tree(VICUNA, 60)
    assert width(AdaptiveTree(VICUNA, limits=Limits(60)), 20) == 21


@pytest.mark.parametrize("size", [4, 12, 60])
def test_in_a_static_tree_every_guess_has_all_prompt_tokens(size: int) -> None:
    """One state, and never more tokens per pass than with a dynamic tree of the size."""
    static = AdaptiveTree(VICUNA, limits=Limits(size, floor=3)).fitting(64)
    assert static is not None
    assert all({*state.prompts} <= {3} for state in static.states)
    assert static.steady_state[-1] == pytest.approx(1)
    dynamic = build_tree(VICUNA, size)
    assert static.tokens_per_pass <= dynamic.tokens_per_pass + 1e-9


def test_costly_rows_make_narrow_trees() -> None:
    widths = [width(AdaptiveTree(VICUNA, curve(cost)), 63) for cost in (0.001, 0.03, 0.5)]
    assert widths == sorted(widths, reverse=True) and widths[0] == 64 and widths[-1] == 4
    # A width that was not measured, where none that was fits: rows are taken to cost as the last.
    assert width(AdaptiveTree(VICUNA, CostCurve((CostPoint(1, 0, 1.0),))), 9) == 4
    # Nobody has measured anything.
    assert 8 <= width(AdaptiveTree(VICUNA), 255) <= 32


@pytest.mark.parametrize("widths", [(1, 2, 4, 8), (1, 2)])
def test_no_wider_tree_is_tried_than_can_pay(
    widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device where rows are free: hundreds of wide trees would take minutes to build."""
    tried = set[int]()

    def survey(*what: Any, **more: Any) -> list[FittedTree]:
        tried.update(what[2])
        return survey_widths(*what, **more)

    monkeypatch.setattr(adaptive_tree, "survey_widths", survey)
    flat = CostCurve(tuple(CostPoint(width, 0, 7.0) for width in widths))
    assert width(AdaptiveTree(VICUNA, flat), 1024) == max(4, *widths)
    assert max(tried) == max(4, *widths)


def test_not_every_width_that_texts_have_had_together_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a while these are hundreds, and texts would wait until all of their trees are built."""
    tried = set[int]()

    def survey(*what: Any, **more: Any) -> list[FittedTree]:
        tried.update(what[2])
        return survey_widths(*what, **more)

    seen = CostCurve(tuple(CostPoint(n, 8, 1 + 0.05 * (n - 1)) for n in range(1, 400)))
    adaptive = AdaptiveTree(VICUNA, curve(0.5), costs=lambda context: seen)
    adaptive.fitting(1024)
    monkeypatch.setattr(adaptive_tree, "survey_widths", survey)
    adaptive.follow(9)
    assert 20 < len(tried) < 100 and max(tried) <= 257


def test_what_is_seen_changes_the_tree_now_and_then() -> None:
    adaptive = AdaptiveTree(VICUNA, curve(0.05))
    before = adaptive.fitting(63)
    for count in range(1, 2000):
        adaptive.observe(1, 0)
        adaptive.observe(2, 0)
        adaptive.observe(3, None)
        changed = adaptive.table != VICUNA
        assert changed == (count >= 128)
    first, second, third = adaptive.table.rows
    # 1024 of each were seen when the table was last made, and it began with 256.
    assert first[0] == pytest.approx((256 * VICUNA.rows[0][0] + 1024) / 1280)
    assert second[1] == pytest.approx(256 * VICUNA.rows[1][1] / (256 + 1023))
    assert third[0] == pytest.approx(256 * VICUNA.rows[2][0] / (256 + 1023))
    after = adaptive.fitting(63)
    assert before is not None and after is not None
    assert max(map(len, after.states[-1].candidates.paths)) == 2 and after != before


def test_a_table_for_what_was_never_measured() -> None:
    for distances in (1, 3, 8):
        table = unmeasured(distances)
        assert table.distances == distances and table.ranks == 10
        assert all(list(row) == sorted(row, reverse=True) for row in table.rows)
    assert unmeasured(2, ranks=3).ranks == 3


def test_embeddings_of_one_prompt_token_stand_side_by_side() -> None:
    guesses = CandidateTree(((0,), (0, 2)), (0.5, 0.1))
    state = StateTree(guesses, (1, 0), root_prompts=2, epts=2)
    tree = state.nodes(([7, 8, 9], [17, 18, 19]), first=30)
    # After the root S11 S21, S12 S22; after the first guess S11, S12.
    assert tree.tokens == (7, 19, 30, 32, 31, 33, 30, 31)
    assert tree.parents == (ROOT, 0, ROOT, 2, ROOT, 4, 0, 0)
    assert tree.weights == (0.5, 0.1, 0, 0, 0, 0, 0, 0)
    # An embedding sees those of its own number before it, and nothing beside it.
    assert [list(row.nonzero()[0]) for row in tree.ancestor_mask[2:]] == [
        [2], [2, 3], [4], [4, 5], [0, 6], [0, 7],
    ]  # fmt: skip
    assert tree.depths == (1, 2, 1, 2, 1, 2, 2, 2)


@given(table=tables(max_distances=3), size=st.integers(6, 40), epts=st.integers(1, 5))
def test_there_is_a_node_for_every_row(table: AcceptanceTable, size: int, epts: int) -> None:
    for state in build_tree(table, size, epts=epts).states:
        tree = state.nodes([range(table.ranks)] * table.distances, first=100)
        assert len(tree) + 1 == state.width <= size + 1 + epts * table.distances
        assert sum(token < 100 for token in tree.tokens) == len(state.candidates)


def test_rows_for_several_embeddings_are_taken_from_guesses() -> None:
    gained = [build_tree(VICUNA, 60, epts=epts).tokens_per_pass for epts in (1, 2, 5)]
    assert gained == sorted(gained, reverse=True) and len(set(gained)) == 3
    with pytest.raises(ValueError, match="needs room"):
        build_tree(VICUNA, 5, epts=5)


@pytest.mark.parametrize("budget", [5, 9, 20, 63])
@pytest.mark.parametrize("bend", [6, 11, 13, 22])
def test_the_best_width_is_found_though_nobody_measured_it(bend: int, budget: int) -> None:
    """Rows are free up to a bend that lies between measured widths, as far as the curve tells."""
    points = [(1, 1.0), (4, 1.02), (8, 1.3 if bend < 8 else 1.05), (16, 1.6), (64, 9.0)]
    bent = CostCurve(tuple(CostPoint(n, 8, cost) for n, cost in points))
    adaptive = AdaptiveTree(VICUNA, bent)
    found = adaptive.fitting(budget)
    every = survey_widths(VICUNA, bent, range(4, budget + 2))
    assert found is not None
    assert found.speedup(bent) >= 0.995 * max(fitted.speedup for fitted in every)


def test_a_width_between_two_measured_ones_is_taken_where_it_is_best() -> None:
    measured = CostCurve(tuple(CostPoint(n, 8, ms) for n, ms in ((1, 10), (4, 10.5), (8, 12))))
    fitted = AdaptiveTree(VICUNA, measured).fitting(63)
    assert fitted is not None
    widest = [survey_widths(VICUNA, measured, (n,))[0].speedup for n in (4, 8)]
    assert fitted.speedup(measured) > max(widest)


def test_the_tree_follows_what_passes_turn_out_to_cost() -> None:
    now = [curve(0.001)]
    adaptive = AdaptiveTree(VICUNA, curve(0.001), costs=lambda context: now[0])
    wide = width(adaptive, 63)
    now[0] = curve(0.00101)  # not worth a thought
    for _ in range(40):
        adaptive.follow(9)
    assert width(adaptive, 63) == wide == 64
    now[0] = curve(0.5)
    for _ in range(40):
        adaptive.follow(9)
    assert width(adaptive, 63) == 4


def test_the_tree_follows_the_length_of_the_context() -> None:
    """In long contexts rows cost more here."""
    points = [CostPoint(n, 8, 1 + 0.001 * n) for n in (1, 4, 16, 64)]
    points += [CostPoint(n, 4000, 1 + 0.5 * n) for n in (1, 4, 16, 64)]
    adaptive = AdaptiveTree(VICUNA, CostCurve(tuple(points)))
    assert width(adaptive, 63) == 64
    for context in range(3000, 3040):
        adaptive.follow(context)
    assert width(adaptive, 63) == 4


def test_trees_are_built_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    adaptive = AdaptiveTree(VICUNA, curve(0.02), costs=lambda context: curve(0.3))
    adaptive.fitting(63)
    for _ in range(300):
        adaptive.observe(1, 0)
        adaptive.follow(9)

    def fail(*args: object, **settings: object) -> None:
        raise AssertionError("a tree was built in a round")

    monkeypatch.setattr(adaptive_tree, "survey_widths", fail)
    assert adaptive.fitting(63) is not None
