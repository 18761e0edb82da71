"""Trees that stay whole and say how likely their guesses are: the gate listens to that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.draft_hosts import TOY
from tests.helpers import generate
from tests.prompt_parts import saved_parts

from paceline.drafters import Host, Ppd
from paceline.planning.calibration import Watch
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, SizedBy
from paceline.records import Path, Round, Seconds, TextStart
from paceline.session import Session
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, Tree

VIRTUAL = 100


class Promising(Drafter):
    """A guess, another one after it, and a virtual row that never counts."""

    sized_by: SizedBy = "whole"

    def __init__(self, chance: float | None) -> None:
        self.chance = chance

    def start(self, text: TextStart) -> None:
        """Nothing to do."""

    def propose(self, budget: int) -> Tree:
        weights = None if self.chance is None else (self.chance, self.chance / 4, 0.0)
        return Tree((1, 2, VIRTUAL), (-1, 0, -1), weights)

    def observe(self, round: Round) -> None:
        """Nothing to learn."""


def share_asked(claimed: float | None, right: float, cost: float, seed: int) -> float:
    """How often the drafter was asked in 300 rounds in which a pass with its tree takes `cost`
    times as long as a plain one, and its first guess is right so often."""
    curve = CostCurve((CostPoint(1, 8, 10.0), CostPoint(4, 8, 10.0 * cost)))
    planner, drafter, rng = TreePlanner(curve), Promising(claimed), random.Random(seed)
    planner.add(0, drafter)
    asked = 0
    for number in range(300):
        tree = planner.plan({0: drafter.propose})[0]
        asked += len(tree) > 0
        path = Path((), (9,))
        if rng.random() < right:
            path = Path((0, 1), (1, 2, 9)) if rng.random() < 0.25 else Path((0,), (1, 9))
        if tree == EMPTY:
            path = Path((), (path.tokens[0],))
        spent = 0.01 * (cost if len(tree) else 1)
        rows = torch.empty(len(tree) + 1, 0)
        planner.observe(
            [Round(0, tree, rows, path, first=number == 0, seconds=Seconds(target=spent))]
        )
    return asked / 300


def test_a_promise_that_pays_keeps_the_gate_open_through_bad_luck() -> None:
    kept = [share_asked(0.4, 0.4, 1.35, seed) for seed in range(20)]
    silent = [share_asked(None, 0.4, 1.35, seed) for seed in range(20)]
    assert sum(kept) / 20 > sum(silent) / 20 + 0.05
    assert sum(share > 0.9 for share in kept) > sum(share > 0.9 for share in silent)


def test_a_promise_that_is_not_kept_closes_the_gate() -> None:
    assert max(share_asked(0.6, 0.05, 1.35, seed) for seed in range(10)) < 0.4


def test_virtual_rows_are_evidence_for_nothing() -> None:
    watch = Watch()
    watch.expect(Promising(0.5).propose(9))
    assert [seen.claim for seen in watch.observe((1,))] == [0.5]
    assert [seen.claim for seen in watch.observe((2,))] == [0.25]
    silent = Watch()
    silent.expect(Promising(None).propose(9))
    assert len(list(silent.observe((1,)))) == 2


def test_the_planner_tells_its_costs() -> None:
    curve = CostCurve((CostPoint(1, 8, 10.0), CostPoint(4, 8, 11.0), CostPoint(4000, 8, 99.0)))
    planner = TreePlanner(curve)
    assert planner.costs(9) is None
    planner.add(0, Promising(0.5))
    for width in [1, 4] * 40:
        tree = Tree.chain([1] * (width - 1))
        planner.plan({0: lambda budget, tree=tree: tree})  # type: ignore[misc]
        spent = Seconds(target=0.02 if width == 1 else 0.06)
        planner.observe([Round(0, tree, torch.empty(width, 0), Path((), (9,)), seconds=spent)])
    live = planner.costs(9)
    assert live is not None
    assert live.cost(1) == pytest.approx(20, rel=0.1)
    assert live.relative(4) == pytest.approx(3, rel=0.15)


class Letters:
    """A tokenizer that can read."""

    chat_template = None

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return "".join(chr(97 + token) for token in ids)


def test_a_session_tells_its_drafters_what_its_passes_cost() -> None:
    session = Session(ToyTarget(), Letters(), "plain")  # type: ignore[arg-type]
    for _ in range(2):
        assert session.host.costs is not None and session.host.costs(5) is None
        session.generate([1, 2, 3], max_new_tokens=5)
        assert session.host.costs(5) is not None
        session.use_curve(None)


def test_prompt_tokens_follow_live_costs() -> None:
    """Rows cost next to nothing by the curve that was kept, and much from some round on."""
    cheap = CostCurve((CostPoint(1, 8, 1.0), CostPoint(64, 8, 1.1)))
    costly = CostCurve((CostPoint(1, 8, 1.0), CostPoint(64, 8, 64.0)))
    asked: list[int] = []

    def costs(context: int) -> CostCurve:
        asked.append(context)
        return cheap if context < 40 else costly

    drafter = Ppd(Host(ToyTarget(), TOY, cheap, costs=costs), parts=str(saved_parts(3, 1)))
    _, rounds, _ = generate(ToyTarget(), drafter, [3, 1, 4, 1, 5], 120)
    assert asked == sorted(asked) and asked[0] >= 5 and asked[-1] > 40
    assert max(len(round.tree) for round in rounds[:20]) > 30
    assert max(len(round.tree) for round in rounds[-20:-4]) <= 5
