"""Times that scatter, and times that were learned wrong."""

from __future__ import annotations

import pytest

from paceline.planning.running_time import RunningTime


def known(milliseconds: float, times: int = 300) -> RunningTime:
    found = RunningTime()
    for _ in range(times):
        found.add(milliseconds)
    return found


@pytest.mark.parametrize("wrong", [0.0, 0.01, 3.0])
def test_what_was_learned_much_too_small_is_soon_learned_anew(wrong: float) -> None:
    found = known(wrong)
    for _ in range(3):
        found.add(10.0)
    assert found.value == pytest.approx(10.0)


def test_two_outliers_in_a_row_change_little() -> None:
    found = known(10.0)
    for _ in range(20):
        for milliseconds in (500.0, 500.0, *[10.0] * 40):
            found.add(milliseconds)
    assert found.value == pytest.approx(10.0, rel=0.05)


def test_the_first_times_are_a_median() -> None:
    found = RunningTime()
    for milliseconds in (90.0, 10.0, 10.0):
        found.add(milliseconds)
    assert found.value == 10.0
