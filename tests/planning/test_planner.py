"""Plans against a clock that only passes and drafters move: never much slower, soon back."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.planning.replay import FLAT, STEEP, Device, Scripted, replay, table

from paceline.drafters import make_drafter
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.planner import TreePlanner

STORY = random.Random(0).sample(range(10**5), 600)  # no token twice: nothing to copy
DEVICES = {"flat": FLAT, "steep": STEEP}


def curve_of(costs: list[float]) -> CostCurve:
    return CostCurve(tuple(CostPoint(w, 0, cost) for w, cost in enumerate(costs) if w))


def never(place: int) -> int:
    return 0


def always(place: int) -> int:
    return 7


def planner_for(costs: list[float], stored: bool) -> TreePlanner:
    return TreePlanner(curve_of(costs) if stored else None)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("weight", [0.99, 0.5, None])
@pytest.mark.parametrize("costs", DEVICES.values(), ids=DEVICES)
def test_guesses_that_never_hit_cost_next_to_nothing(
    costs: list[float], weight: float | None, stored: bool
) -> None:
    device = Device(table(costs))
    replay(device, [Scripted(STORY, never, weight=weight)], STORY, planner_for(costs, stored))
    assert device.spent <= 1.03 * len(STORY) * costs[1]


@pytest.mark.parametrize(("costs", "share"), [(FLAT, 0.015), (STEEP, 0.005)], ids=["flat", "steep"])
def test_retries_cost_a_hundredth_of_the_time(costs: list[float], share: float) -> None:
    """Of the second text, when everything is known: what is spent beyond plain decoding. Where a
    guess costs a hundredth of a pass, there is another hundredth in not being sure it is wrong."""
    planner, device = TreePlanner(curve_of(costs)), Device(table(costs))
    replay(device, [Scripted(STORY, never)], STORY, planner)
    before = device.spent
    replay(device, [Scripted(STORY, never)], STORY, planner)
    assert device.spent - before <= (1 + share) * len(STORY) * costs[1]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("costs", DEVICES.values(), ids=DEVICES)
def test_guesses_that_always_hit_are_taken_whole(costs: list[float], stored: bool) -> None:
    best = Device(table(costs))
    replay(best, [Scripted(STORY, always)], STORY, 7)
    device, planner = Device(table(costs)), planner_for(costs, stored)
    replay(device, [Scripted(STORY, always)], STORY, planner)
    replay(device, [Scripted(STORY, always)], STORY, planner)
    # Looking at plain decoding is the price of not knowing what it costs.
    assert device.spent <= 2 * best.spent * 1.05 + (0 if stored else 80)


@pytest.mark.parametrize("right", [1, 2, 4])
@pytest.mark.parametrize("costs", DEVICES.values(), ids=DEVICES)
def test_chains_are_cut_where_they_stop_being_right(costs: list[float], right: int) -> None:
    def spent(sizing: int | TreePlanner) -> float:
        device = Device(table(costs))
        replay(device, [Scripted(STORY, lambda place: right, weight=0.9)], STORY, sizing)
        return device.spent

    best = min(spent(budget) for budget in range(8))
    assert spent(TreePlanner(curve_of(costs))) <= 1.06 * best


@pytest.mark.parametrize("costs", DEVICES.values(), ids=DEVICES)
def test_it_comes_back_when_the_text_begins_to_repeat_itself(costs: list[float]) -> None:
    def switching(place: int) -> int:
        return 7 if place >= 300 else 0

    best = Device(table(costs))
    replay(best, [Scripted(STORY, switching)], STORY, 7)
    device = Device(table(costs))
    replay(device, [Scripted(STORY, switching)], STORY, TreePlanner(curve_of(costs)))
    ideal = 300 * costs[1] + 300 / 8 * costs[8]
    assert device.spent <= 1.06 * ideal
    assert device.spent < best.spent


def test_anpd_on_a_text_that_repeats_itself() -> None:
    story = STORY[:30] * 20
    planner = TreePlanner(curve_of(FLAT))
    spent: dict[int | TreePlanner, float] = {}
    for sizing in (0, 1, 3, 5, 7, 64, planner):
        device = Device(table(FLAT))
        replay(device, [make_drafter("anpd")], story, sizing)
        spent[sizing] = device.spent
    assert spent.pop(planner) <= 1.05 * min(spent.values())


def test_a_cheap_width_beyond_a_costly_one_is_filled() -> None:
    device = Device(table(STEEP))
    drafter = Scripted(STORY, lambda place: 2, weight=0.9)
    replay(device, [drafter], STORY, TreePlanner(curve_of(STEEP)))
    assert device.widths.count(4) > 150 > 10 * device.widths.count(3)


@pytest.mark.parametrize(("right", "pays"), [(0, False), (1, False), (2, True), (4, True)])
def test_whole_trees_are_scored_or_left_out(right: int, pays: bool) -> None:
    """Width 6 costs 2.4 passes here."""
    device = Device(table(STEEP))
    drafter = Scripted(STORY, lambda place: right, length=5, sized_by="whole")
    rounds = replay(device, [drafter], STORY, TreePlanner(curve_of(STEEP)))
    ended = {len(round.tree) for round in rounds[:-5]}
    assert ended <= {0, 5}
    plain = len(STORY) * STEEP[1]
    if pays:
        assert sum(len(round.tree) == 0 for round in rounds) <= 4
    else:
        assert device.spent <= 1.03 * plain + 8 * (STEEP[6] - STEEP[1])


def test_whole_trees_come_back_too() -> None:
    device = Device(table(FLAT))

    def switching(place: int) -> int:
        return 4 if place >= 300 else 0

    drafter = Scripted(STORY, switching, length=5, sized_by="whole")
    rounds = replay(device, [drafter], STORY, TreePlanner(curve_of(FLAT)))
    assert device.spent < 0.75 * len(STORY) * FLAT[1]
    assert sum(len(round.tree) for round in rounds) > 0


def test_a_drafter_that_takes_longer_than_it_saves_is_not_asked() -> None:
    device = Device(table(FLAT))
    drafter = Scripted(STORY, lambda place: 1, device=device, milliseconds=15.0)
    replay(device, [drafter], STORY, TreePlanner(curve_of(FLAT)))
    assert drafter.asked < 60
    assert device.spent <= 1.06 * len(STORY) * FLAT[1]


def test_a_batch_is_as_wide_as_pays_for_all() -> None:
    """One text that repeats itself among two that do not, on a device that charges for rows."""
    costs = [0.0, *(10.0 + 0.2 * rows for rows in range(1, 33))]
    kinds: list[Callable[[int], int]] = [always, never, never]

    device = Device(table(costs))
    drafters = [Scripted(STORY, right) for right in kinds]
    replay(device, drafters, STORY, TreePlanner(curve_of(costs)))
    together, rest = len(STORY) // 8, len(STORY) - len(STORY) // 8
    assert device.spent <= 1.03 * (together * costs[3 + 7] + rest * costs[2])


def test_the_same_rounds_are_planned_the_same() -> None:
    def widths() -> list[int]:
        rng = random.Random(3)
        device = Device(table(FLAT), noise=lambda: rng.lognormvariate(0, 0.1))
        replay(device, [Scripted(STORY, lambda place: place % 5)], STORY, TreePlanner())
        return device.widths

    assert widths() == widths()


def test_noise_and_outliers_of_the_clock_do_little() -> None:
    def spent(noise: Callable[[], float]) -> float:
        device = Device(table(FLAT), noise)
        replay(device, [Scripted(STORY, lambda place: place % 5)], STORY, TreePlanner())
        return device.spent

    rng = random.Random(1)

    def noisy() -> float:
        return rng.lognormvariate(0, 0.1) * (8.0 if rng.random() < 0.05 else 1.0)

    assert spent(noisy) <= 1.06 * spent(lambda: 1.0)


def test_what_was_learned_serves_the_next_text() -> None:
    """With costs known, the second text wastes less than the first one."""
    planner, times = TreePlanner(), []
    for _ in range(2):
        device = Device(table(STEEP))
        replay(device, [Scripted(STORY, never)], STORY, planner)
        times.append(device.spent)
    assert times[1] < times[0]
