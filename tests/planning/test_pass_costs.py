"""Costs of passes learned from times that scatter, drift and jump."""

from __future__ import annotations

import random

import pytest
from tests.planning.test_cost_curve import CLIFF, curve_of

from paceline.planning.cost_curve import CostCurve
from paceline.planning.pass_costs import PassCosts


def relative(costs: PassCosts, width: int) -> float:
    return costs.of(width) / costs.of(1)


def test_a_curve_is_believed_and_its_level_is_not() -> None:
    costs = PassCosts(curve_of(CLIFF))
    costs.observe(1, 20.0)  # a busy machine: everything takes twice as long
    assert costs.of(1) == pytest.approx(20.0)
    assert [relative(costs, width) for width in (2, 4, 8)] == pytest.approx([2.2, 1.08, 1.24])
    assert costs.upto(8) == pytest.approx([costs.of(width) for width in range(1, 9)])


def test_without_a_curve_a_few_passes_tell() -> None:
    """Costs that are not monotone, seen in turn."""
    costs = PassCosts()
    for _ in range(6):
        for width in (1, 2, 4, 8):
            costs.observe(width, CLIFF[width])
    for width in (2, 4, 8):
        assert relative(costs, width) == pytest.approx(CLIFF[width] / CLIFF[1], rel=0.04)
    assert relative(costs, 2) > relative(costs, 3) > relative(costs, 4)  # between what is known


def test_a_wrong_curve_is_corrected() -> None:
    costs = PassCosts(curve_of({1: 10.0, 8: 10.0}))
    for _ in range(40):
        costs.observe(1, 10.0)
        costs.observe(8, 15.0)
    assert relative(costs, 8) == pytest.approx(1.5, rel=0.05)


def test_the_first_pass_of_a_width_may_warm_up() -> None:
    costs = PassCosts(curve_of({1: 10.0, 8: 12.0}))
    costs.observe(1, 10.0)
    costs.observe(8, 500.0)
    assert relative(costs, 8) == pytest.approx(1.2)
    costs.observe(4, 5.0)  # faster than expected: that counts
    assert relative(costs, 4) < 1.07  # 1.09 between the points


def test_outliers_and_noise_do_little() -> None:
    rng = random.Random(4)
    costs = PassCosts(curve_of(CLIFF))
    for _ in range(300):
        width = rng.choice([1, 4, 8])
        late = 10.0 if rng.random() < 0.05 else 1.0
        costs.observe(width, CLIFF[width] * rng.lognormvariate(0, 0.08) * late)
        assert costs.of(1) < 25.0
    for width in (4, 8):
        assert relative(costs, width) == pytest.approx(CLIFF[width] / CLIFF[1], rel=0.12)


def test_a_width_that_was_slow_for_a_while_and_is_avoided_is_believed_again() -> None:
    costs = PassCosts(curve_of(CLIFF))
    for _ in range(20):
        costs.observe(1, CLIFF[1])
        costs.observe(8, 4 * CLIFF[8])
    assert relative(costs, 8) > 2 * CLIFF[8] / CLIFF[1]
    for _ in range(600):
        costs.observe(1, CLIFF[1])
    assert relative(costs, 8) == pytest.approx(CLIFF[8] / CLIFF[1], rel=0.05)


def test_a_width_beyond_the_measured_ones_is_believed_at_once() -> None:
    costs = PassCosts(curve_of(CLIFF))
    for _ in range(4):
        costs.observe(1, CLIFF[1])
    for _ in range(2):  # the first one may have been warming up
        costs.observe(64, 20 * CLIFF[1])
    assert relative(costs, 64) == pytest.approx(20, rel=0.3)


def test_a_text_that_grows_longer_makes_no_width_look_costly() -> None:
    """Wide passes only, while every pass slowly comes to take half as long again."""
    costs = PassCosts(curve_of(CLIFF))
    for step in range(400):
        costs.observe(8, CLIFF[8] * (1 + step / 800))
    assert relative(costs, 8) == pytest.approx(CLIFF[8] / CLIFF[1], rel=0.1)


def test_another_text_makes_no_width_look_costly() -> None:
    """One width is used for long, then another one, in texts whose passes take half as long again or
    less, in turns. Plain decoding is seldom seen."""
    costs = PassCosts(curve_of(CLIFF))
    for text in range(20):
        slow = 1.7 if text % 2 else 1.0
        costs.expect_change()
        for step in range(60):
            width = 1 if step == 50 else 4 if text < 10 else 8
            costs.observe(width, slow * CLIFF[width])
        assert costs.of(8) == pytest.approx(slow * CLIFF[8], rel=0.03)
        for width in (2, 4, 8, 16):
            assert relative(costs, width) == pytest.approx(CLIFF[width] / CLIFF[1], rel=0.05)


def test_corrections_are_relative_to_plain_decoding() -> None:
    """All widths are known, then two are seen, one of them seldom, and all passes come to take half
    as long without a word: in time, that is believed of the other widths, too."""
    costs = PassCosts(curve_of(CLIFF))
    for step in range(2000):
        changed = step > 192
        width = (1 if step % 32 == 0 else 4) if changed else (2, 8, 4, 1)[step % 4]
        costs.observe(width, CLIFF[width] / (2 if changed else 1))
    for width in (2, 4, 8):
        assert costs.of(width) == pytest.approx(CLIFF[width] / 2, rel=0.05)


def test_a_clock_that_stands_still_tells_nothing() -> None:
    costs = PassCosts(curve_of(CLIFF))
    costs.observe(4, 0.0)
    assert costs.of(4) == pytest.approx(CLIFF[4])


def test_another_number_of_texts_inherits_the_corrections() -> None:
    costs = PassCosts()
    for _ in range(5):
        costs.observe(1, 10.0)
        costs.observe(4, 30.0)
    inherited = costs.inherited(2)
    assert inherited.of(1) == pytest.approx(costs.of(1), rel=0.05)
    inherited.observe(1, 12.0)
    assert inherited.of(1) == pytest.approx(12.0)
    assert relative(inherited, 4) > 2.5


def test_what_was_known_for_long_can_change() -> None:
    """Width 6 comes to cost three times as much while plain decoding is seldom seen."""
    costs = PassCosts()
    for _ in range(1000):
        costs.observe(1, 10.0)
        costs.observe(6, 11.0)
    for _ in range(64):
        costs.observe(6, 35.0)
    doubted = [costs.doubts_plain]
    costs.observe(1, 10.0)
    doubted.append(costs.doubts_plain)
    for _ in range(2):
        for _ in range(4):
            costs.observe(6, 35.0)
        costs.observe(1, 10.0)
    assert relative(costs, 6) == pytest.approx(3.5, rel=0.15)
    for _ in range(100):
        costs.observe(1, 10.0)
        costs.observe(6, 35.0)
    assert relative(costs, 6) == pytest.approx(3.5, rel=0.05)
    doubted.append(costs.doubts_plain)
    assert doubted == [False, True, False]


def test_a_small_change_outweighs_what_was_known() -> None:
    costs = PassCosts()
    for _ in range(1000):
        costs.observe(1, 10.0)
        costs.observe(6, 11.0)
    for _ in range(128):
        costs.observe(1, 10.0)
        costs.observe(6, 12.1)
    assert relative(costs, 6) == pytest.approx(1.21, rel=0.03)


def test_one_slow_pass_of_plain_decoding_changes_little() -> None:
    costs = PassCosts(curve_of(CLIFF))
    for step in range(300):
        costs.observe(1 if step % 64 == 0 else 8, CLIFF[1 if step % 64 == 0 else 8])
    before = relative(costs, 8)
    costs.observe(1, 10 * CLIFF[1])
    assert costs.doubts_plain
    assert relative(costs, 8) == pytest.approx(before, rel=0.12)


NEAR, FAR = {1: 10.0, 4: 11.0, 8: 14.0, 16: 20.0}, {1: 14.0, 4: 17.0, 8: 25.0, 16: 40.0}


@pytest.mark.parametrize("seen", [(1,), (1, 8), (1, 4, 8)])
def test_a_long_text_costs_what_its_passes_take(seen: tuple[int, ...]) -> None:
    """And a width that was not seen, what the curve says at that length."""
    curve = CostCurve(curve_of(NEAR).points + curve_of(FAR, context=1024).points)
    costs = PassCosts(curve)
    for step in range(300):
        width = seen[step % len(seen)]
        costs.observe(width, 1.5 * FAR[width])
    live = costs.curve(1000)
    assert live is not None
    assert {width: live.cost(width) for width in seen} == pytest.approx(
        {width: costs.of(width) for width in seen}
    )
    for width in FAR:
        assert live.cost(width) == pytest.approx(1.5 * FAR[width], rel=0.03)


def test_what_a_text_of_several_pays_is_made_once_in_sixteen_passes() -> None:
    costs = PassCosts(curve_of(CLIFF), texts=4)
    assert costs.share(100) is None
    costs.observe(1, 40.0)
    first = costs.share(100)
    assert first is not None and first.cost(1) == pytest.approx(10.0)
    for _ in range(15):
        costs.observe(1, 80.0)
        assert costs.share(5000) is first
    costs.observe(1, 80.0)
    later = costs.share(100)
    assert later is not None and later.cost(1) == pytest.approx(costs.of(1) / 4)
    assert later.cost(1) > 15.0
