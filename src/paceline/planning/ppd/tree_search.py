"""The best dynamic sparse tree for a number of rows, and for a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.candidate_tree import CandidateTree, likeliest
from paceline.planning.cost_curve import CostCurve
from paceline.planning.ppd.dynamic_tree import DynamicTree, StateTree, Vector, allocate_prompts

_ROUNDS = 50  # a handful suffice; see `build_tree`
_GAIN = 1e-12


@dataclass(frozen=True)
class FittedTree:
    """The best tree for passes of a certain width.

    width: most rows of a pass, all included: the root, guesses, and the prompt tokens of both.
    milliseconds: expected time of a pass.
    speedup: over plain decoding, see `DynamicTree.speedup`.
    """

    width: int
    tree: DynamicTree
    milliseconds: float
    speedup: float


def build_tree(table: AcceptanceTable, size: int, floor: int = 1, epts: int = 1) -> DynamicTree:
    """The tree that gains most tokens per pass, with at most `size` guesses and prompt tokens.

    table: one row per prompt token.
    size: as the paper counts, without the root and the m prompt tokens after it, so that a pass
    is up to size + 1 + m rows wide.
    floor: the least number of prompt tokens after a guess. With 0 there are more guesses, and now
    and then a round without any; that gains a little if `size` is small.
    epts: rows per prompt token; `size` counts all of them.

    Each state has the likeliest guesses, and the other rows go to prompt tokens by
    `allocate_prompts`. The paper (5.6.3) tries all combinations of numbers of guesses. Here each
    state chooses its own, by the tokens of this round and the `worth` of the states it leads to,
    which changes the worth, until nothing gains any more (policy iteration, Howard 1960). For any
    m, a few rounds find the trees of the exhaustive search.

    Raises ValueError for a size below 1 + floor x epts, or a floor out of range.
    """
    most = table.distances
    if not 0 <= floor <= most:
        raise ValueError(f"floor must be between 0 and the {most} prompt tokens, got {floor}")
    if size < 1 + floor * epts:
        raise ValueError(f"a tree needs room for a guess and its prompt tokens, got {size}")

    def shaped(guesses: CandidateTree, worth: Vector) -> StateTree:
        prompts = allocate_prompts(guesses.last, worth, (size - len(guesses)) // epts, floor)
        return StateTree(guesses, prompts, most, epts)

    choices = [_choices(table, depth, size, floor, epts) for depth in range(most + 1)]
    # The first allocation is the paper's: a state is worth its accepted guesses.
    worth = np.array([trees[0].expected for trees in choices])
    best = DynamicTree(tuple(shaped(trees[0], worth) for trees in choices))
    for _ in range(_ROUNDS):
        states = tuple(
            _improved(state, [shaped(tree, best.worth) for tree in trees], best.worth)
            for state, trees in zip(best.states, choices)
        )
        if states == best.states:
            break
        best = DynamicTree(states)
    return best


def survey_widths(
    table: AcceptanceTable,
    curve: CostCurve,
    widths: Sequence[int] | None = None,
    *,
    floor: int = 1,
    epts: int = 1,
) -> list[FittedTree]:
    """The fastest tree for every width, and what it promises on this machine (PPD, section 5.6.3).

    widths: most rows of a pass, by default those of the curve; those too small for a tree are left
    out. floor, epts: see `build_tree`. In a narrow pass the tree need not use all prompt tokens.
    """
    found = []
    for width in curve.widths if widths is None else widths:
        trees = [
            _built(table.up_to(used), width - 1 - used * epts, floor, epts)
            for used in range(max(1, floor), table.distances + 1)
            if width - 1 - used * epts >= 1 + floor * epts
        ]
        if trees:
            best = max(trees, key=lambda tree: tree.speedup(curve))
            found.append(FittedTree(width, best, best.milliseconds(curve), best.speedup(curve)))
    return found


def fastest(survey: Sequence[FittedTree]) -> FittedTree | None:
    """The width with the largest speed-up, or None if plain decoding is as fast."""
    best = max(survey, key=lambda fitted: fitted.speedup, default=None)
    return best if best is not None and best.speedup > 1 else None


# Trees do not depend on costs, which change more often than tables do.
_built = lru_cache(maxsize=1024)(build_tree)


def _choices(
    table: AcceptanceTable, depth: int, size: int, floor: int, epts: int
) -> list[CandidateTree]:
    """The possible trees of a state: from as many guesses as can all have every prompt token (fewer
    would leave rows unused) to as many as can all have the least."""
    most = size // (1 + floor * epts)
    whole = likeliest(table.rows[:depth], most)
    fewest = max(1, size // (1 + table.distances * epts))
    return [whole.first(count) for count in range(min(fewest, len(whole)), len(whole) + 1)]


def _improved(state: StateTree, choices: Sequence[StateTree], worth: Vector) -> StateTree:
    """The best of the choices, or the state itself if none gains more."""

    def value(state: StateTree) -> float:
        return state.candidates.expected + float(state.next_states @ worth)

    best = max(choices, key=value)
    return best if value(best) > value(state) + _GAIN else state
