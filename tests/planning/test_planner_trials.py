"""What finding out costs: slow drafts, short texts, costly trials and costs that change."""

from __future__ import annotations

import random

import pytest
from tests.planning.replay import FLAT, STEEP, Device, Scripted, replay, table
from tests.planning.test_planner import STORY, always, curve_of, never, planner_for

from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.planner import MOST_NODES, TreePlanner
from paceline.protocols import Propose, SizedBy
from paceline.tree import EMPTY, Tree


class SlowAtFirst(Scripted):
    """Takes five passes to build something before its first draft of every text."""

    def propose(self, budget: int) -> Tree:
        assert self.device is not None
        self.milliseconds = 50.0 if self.asked == 0 else 0.1
        return super().propose(budget)


@pytest.mark.parametrize(("texts", "row"), [(16, 0.0), (16, 0.5), (32, 0.5), (64, 0.0)])
def test_passes_wider_than_any_that_was_measured(texts: int, row: float) -> None:
    """Where rows beyond 64 are nearly free they are used; where they are not, that is soon known."""

    def cost(rows: int) -> float:
        return 10.0 + 0.004 * min(rows, 64) + (row or 0.004) * max(0, rows - 64)

    curve = CostCurve(tuple(CostPoint(rows, 0, cost(rows)) for rows in (1, 8, 16, 32, 64)))
    device, story = Device(cost), STORY[:300]
    drafters = [Scripted(story, lambda place: 2) for _ in range(texts)]
    replay(device, drafters, story, TreePlanner(curve))
    fixed = [len(story) / (1 + nodes) * cost(texts * (1 + nodes)) for nodes in (0, 1, 2)]
    assert device.spent < 1.4 * min(fixed)


def test_texts_without_room_for_guesses_say_nothing_about_others() -> None:
    planner = planner_for(FLAT, True)
    for length in [2] * 400 + [400]:
        device, story = Device(table(FLAT)), STORY[:length]
        drafter = Scripted(story, always, sized_by="whole", device=device, milliseconds=0.1)
        rounds = replay(device, [drafter], story, planner)
    assert len(rounds) < 80


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("sized_by", ["nodes", "whole"])
def test_a_slow_first_draft_is_not_what_drafts_cost(sized_by: SizedBy, stored: bool) -> None:
    device, planner = Device(table(FLAT)), planner_for(FLAT, stored)
    drafter = SlowAtFirst(STORY, always, sized_by=sized_by, device=device)
    rounds = replay(device, [drafter], STORY, planner)
    assert sum(len(round.tree) == 0 for round in rounds) <= 6
    assert sum(len(round.tree) == 7 for round in rounds) > 60


def test_what_is_made_once_the_prompt_is_read_does_not_count_either() -> None:
    class Late(Scripted):
        def propose(self, budget: int) -> Tree:
            self.milliseconds = 1000.0 if self.asked == 1 else 0.1
            tree = super().propose(budget)
            return tree if self.asked > 1 else EMPTY

    device = Device(table(FLAT))
    drafter = Late(STORY, always, sized_by="whole", device=device)
    rounds = replay(device, [drafter], STORY, planner_for(FLAT, True))
    assert sum(len(round.tree) == 7 for round in rounds) > 60


@pytest.mark.parametrize("seed", range(10))
def test_bad_luck_sends_nobody_away(seed: int) -> None:
    """Two guesses in five are right and claim no more, at the price of a quarter of a pass: that
    gains a tenth of the time, though rounds without a token more come many in a row."""
    luck, device = random.Random(seed), Device(table(FLAT))
    right = [luck.random() < 0.4 for _ in STORY]
    drafter = Scripted(
        STORY[:300],
        lambda place: int(right[place]),
        length=1,
        weight=0.4,
        device=device,
        milliseconds=2.5,
    )
    rounds = replay(device, [drafter], STORY[:300], TreePlanner(curve_of(FLAT)))
    assert sum(len(round.tree) == 0 for round in rounds) < 0.05 * len(rounds)


def test_one_draft_that_was_slow_later_on_does_not_count_either() -> None:
    device = Device(table(FLAT))

    class Hiccup(Scripted):
        def propose(self, budget: int) -> Tree:
            self.milliseconds = 300.0 if self.asked == 2 else 0.1
            return super().propose(budget)

    drafter = Hiccup(STORY, always, sized_by="whole", device=device)
    rounds = replay(device, [drafter], STORY, planner_for(FLAT, True))
    assert sum(len(round.tree) == 7 for round in rounds) > 60


@pytest.mark.parametrize("tokens", [3, 30])
@pytest.mark.parametrize("texts", [1, 4])
def test_short_texts_with_useless_whole_trees(tokens: int, texts: int) -> None:
    """Many of them, in turn and in batches: together they cost what one long text does."""
    planner, device = TreePlanner(curve_of(STEEP)), Device(table(STEEP))
    count = 1500 // tokens
    for _ in range(count):
        drafters = [
            Scripted(STORY[:tokens], never, length=5, sized_by="whole") for _ in range(texts)
        ]
        replay(device, drafters, STORY[:tokens], planner)
    plain = count * tokens * device.cost(texts)
    trial = 8 * (device.cost(6 * texts) - device.cost(texts))
    assert device.spent <= 1.02 * plain + 1.5 * trial


def test_whole_trees_that_are_costly_are_tried_again() -> None:
    """Width 6 costs 2.4 passes; a price of more than a pass."""
    story = random.Random(1).sample(range(10**5), 5000)
    device = Device(table(STEEP))
    drafter = Scripted(story, lambda place: 4 if place >= 1000 else 0, length=5, sized_by="whole")
    replay(device, [drafter], story, TreePlanner(curve_of(STEEP)))
    back = next(at for at, width in enumerate(device.widths) if at > 100 and width == 6)
    assert back < 2000
    assert device.spent < 0.8 * len(story) * STEEP[1]


def test_only_trees_that_may_be_cut_are_limited() -> None:
    asked: dict[str, int] = {}
    drafters = [Scripted(STORY, always, sized_by="whole"), Scripted(STORY, always)]
    planner = TreePlanner(CostCurve((CostPoint(1, 0, 10.0), CostPoint(64, 0, 12.0))))
    for key, drafter in enumerate(drafters):
        planner.add(key, drafter)

    def asks(name: str) -> Propose:
        def propose(budget: int) -> Tree:
            asked[name] = budget
            return EMPTY

        return propose

    planner.plan({0: asks("whole"), 1: asks("nodes")})
    assert asked["whole"] >= 105 + 3 and asked["nodes"] <= MOST_NODES


@pytest.mark.parametrize("texts", [1, 3])
def test_costs_that_change_are_noticed(texts: int) -> None:
    """Width 6 first costs 1.1 passes and then 3.5 passes, at two tokens per round."""
    rng = random.Random(5)
    story = rng.sample(range(10**5), 500)
    wide = 11.0
    device = Device(
        lambda rows: 10.0 if rows == texts else wide,
        noise=lambda: rng.lognormvariate(0, 0.03) * (6.0 if rng.random() < 0.02 else 1.0),
    )

    def spent(planner: TreePlanner) -> float:
        before = device.spent
        drafters = [
            Scripted(story, lambda place: 1, length=5, sized_by="whole") for _ in range(texts)
        ]
        replay(device, drafters, story, planner)
        return device.spent - before

    planner = TreePlanner()
    for _ in range(4):
        spent(planner)
    assert spent(planner) < 0.65 * len(story) * 10.0
    wide = 35.0
    assert spent(planner) < 1.3 * len(story) * 10.0  # at worst 1.75
    later = sum(spent(planner) for _ in range(3))
    assert later <= 3 * 1.03 * len(story) * 10.0
    wide = 11.0
    for _ in range(4):
        spent(planner)
    assert spent(planner) < 0.65 * len(story) * 10.0
