"""Times of asking a source, by how sure the others are."""

from __future__ import annotations

import pytest

from paceline.drafters.source_account import AskingTimes


def test_each_class_has_its_own_time_and_others_have_that_over_all() -> None:
    times = AskingTimes()
    assert times.of(0) is None
    for _ in range(8):
        times.add(2.0, 0)
        times.add(6.0, 3)
    assert times.of(0) == pytest.approx(2.0) and times.of(3) == pytest.approx(6.0)
    overall = times.of(1)
    assert overall is not None and 2.0 < overall < 6.0
    assert times.bounded(100.0, 0) == pytest.approx(4.0)


def test_one_time_does_not_replace_what_is_usual_and_five_do() -> None:
    times = AskingTimes()
    times.add(9.0, 0)
    assert times.instead_of(3.0, 9.0, 0) == pytest.approx(5.0)
    for _ in range(4):
        times.add(9.0, 0)
    assert times.instead_of(3.0, 9.0, 0) == 9.0
