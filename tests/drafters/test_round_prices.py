"""What rounds cost, in passes of plain decoding."""

from __future__ import annotations

import pytest

from paceline.drafters.round_prices import RoundPrices
from paceline.planning.cost_curve import CostCurve, CostPoint


def test_times_have_no_price_before_a_pass_was_timed() -> None:
    """A pass that also read a prompt is not."""
    prices = RoundPrices()
    assert prices.played(100, 1, 1, 5.0, None) == pytest.approx(1.0)
    assert prices.in_passes(5.0) is None
    prices.played(100, 1, 1, 5.0, 10.0)
    assert prices.in_passes(5.0) == pytest.approx(0.5)
    assert prices.in_passes(None) is None
    assert prices.played(100, 1, 1, 5.0, None) == pytest.approx(1.5)


def test_texts_that_find_the_same_costs_compute_them_once() -> None:
    asked: list[int] = []

    class Counted(CostCurve):
        def relative(self, width: int) -> float:
            asked.append(width)
            return super().relative(width)

    curve = Counted((CostPoint(1, 0, 10.0), CostPoint(9, 0, 18.0)))
    prices = RoundPrices(lambda context: curve)
    prices.played(100, 1, 1, 0.0, 10.0)
    for text in range(64):
        assert prices.played(100 + text, 5, 2, 0.0, 10.0) == pytest.approx(1.4)
    assert asked == [5]
