"""Prompt tokens, the chain of states and what a tree promises."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.tables import VICUNA, tables

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.candidate_tree import CandidateTree, likeliest
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.ppd.dynamic_tree import DynamicTree, StateTree, allocate_prompts

SHARES = st.sampled_from([0.0, 0.05, 0.1, 0.1, 0.25, 0.5])


def take_one_by_one(
    last: list[float], worth: list[float], total: int, floor: int
) -> tuple[int, ...]:
    """The rule as the paper has it: look at every node, take where it loses least, repeat."""
    prompts = [len(worth) - 1] * len(last)
    while sum(prompts) > total:
        losses = {
            node: last[node] * (worth[count] - worth[count - 1])
            for node, count in enumerate(prompts)
            if count > floor
        }
        prompts[min(losses, key=lambda node: losses[node])] -= 1
    return tuple(prompts)


@st.composite
def allocations(
    draw: st.DrawFn, concave: bool = False
) -> tuple[list[float], list[float], int, int]:
    last = draw(st.lists(SHARES, min_size=1, max_size=5))
    steps = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    if concave:
        steps.sort(reverse=True)
    worth = [sum(steps[:count]) / 8 for count in range(len(steps) + 1)]
    floor = draw(st.integers(0, min(2, len(steps))))
    total = draw(st.integers(floor * len(last), len(steps) * len(last)))
    return last, worth, total, floor


@given(given=allocations())
def test_one_sort_is_the_greedy_removal(given: tuple[list[float], list[float], int, int]) -> None:
    last, worth, total, floor = given
    found = allocate_prompts(np.array(last), worth, total, floor)
    assert found == take_one_by_one(last, worth, total, floor)
    assert sum(found) == total and min(found) >= floor


@given(given=allocations(concave=True))
def test_greedy_removal_is_the_best_allocation(
    given: tuple[list[float], list[float], int, int],
) -> None:
    last, worth, total, floor = given

    def value(prompts: tuple[int, ...]) -> float:
        return sum(share * worth[count] for share, count in zip(last, prompts))

    ways = product(range(floor, len(worth)), repeat=len(last))
    best = max(value(way) for way in ways if sum(way) <= total)
    assert value(allocate_prompts(np.array(last), worth, total, floor)) == pytest.approx(best)


def test_prompt_tokens_are_not_taken_without_need_and_not_below_the_floor() -> None:
    last = np.array([0.5, 0.2])
    assert allocate_prompts(last, [0, 1, 1.5], 9) == (2, 2)
    assert allocate_prompts(last, [0, 1, 1.5], 2) == (1, 1)
    assert allocate_prompts(last, [0, 1, 1.5], 1, floor=0) == (1, 0)
    assert allocate_prompts(np.array([]), [0, 1], 0) == ()
    with pytest.raises(ValueError, match="2 nodes with 1 prompt tokens each need more than 1"):
        allocate_prompts(last, [0, 1, 1.5], 1)


def some_tree(table: AcceptanceTable, counts: list[int]) -> DynamicTree:
    """Any tree: state d has some guesses and their numbers of prompt tokens come from `counts`."""
    states, most = [], table.distances
    for depth in range(most + 1):
        candidates = likeliest(table.rows[:depth], 7)
        prompts = [counts[(node + depth) % len(counts)] % (most + 1) for node in range(7)]
        states.append(StateTree(candidates, tuple(prompts[: len(candidates)]), most))
    return DynamicTree(tuple(states))


@given(table=tables(), counts=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_the_steady_state_is_one(table: AcceptanceTable, counts: list[int]) -> None:
    tree = some_tree(table, counts)
    assert tree.transitions.sum(axis=1) == pytest.approx(np.ones(len(tree.states)))
    assert tree.transitions.min() >= 0
    assert tree.steady_state.sum() == pytest.approx(1)
    assert tree.steady_state @ tree.transitions == pytest.approx(tree.steady_state, abs=1e-6)
    assert 1 <= tree.tokens_per_pass <= 1 + table.distances + 1e-9


@given(table=tables(certain=False), counts=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_worth_is_what_a_state_gains_in_the_long_run(
    table: AcceptanceTable, counts: list[int]
) -> None:
    tree = some_tree(table, counts)
    ahead, chances = np.zeros(len(tree.states)), np.eye(len(tree.states))
    for _ in range(400):
        ahead += chances @ tree.accepted
        chances = chances @ tree.transitions
    assert tree.worth == pytest.approx(ahead - ahead[-1], abs=1e-5)


def test_widths_count_the_root_and_all_prompt_tokens() -> None:
    candidates = CandidateTree(((0,), (1,), (0, 0)), (0.5, 0.2, 0.1))
    tree = StateTree(candidates, (2, 1, 1), root_prompts=2)
    assert tree.width == 1 + 2 + 3 + 4
    # 0.4 end at the first node, 0.2 and 0.1 at the others, and 0.3 at the root.
    assert tree.next_states == pytest.approx([0, 0.3, 0.7])


def test_every_state_costs_its_own_width() -> None:
    guesses = CandidateTree(((0,),), (0.5,))
    tree = DynamicTree((StateTree(CandidateTree(), (), 1), StateTree(guesses, (0,), 1)))
    # Half of the rounds in state 1 are followed by one in state 0, which is followed by state 1.
    assert tree.steady_state == pytest.approx([1 / 3, 2 / 3])
    assert tree.tokens_per_pass == pytest.approx(1 + 1 / 3)
    curve = CostCurve(tuple(CostPoint(width, 8, cost) for width, cost in ((1, 5), (2, 6), (3, 9))))
    assert tree.milliseconds(curve) == pytest.approx((6 + 2 * 9) / 3)
    assert tree.speedup(curve) == pytest.approx(4 / 3 * 5 / 8)


def test_nothing_accepted_leads_to_all_prompt_tokens_at_once() -> None:
    """Not to a state of its own that guesses nothing, as in the official code."""
    tree = some_tree(VICUNA, [1])
    rejected = 1 - sum(VICUNA.rows[0][:7])
    assert tree.states[1].next_states == pytest.approx([0, 1 - rejected, 0, rejected])
