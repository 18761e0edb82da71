"""The cost curve as numbers: interpolation, cliffs, records."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.planning.cost_curve import CostCurve, CostPoint


def curve_of(costs: dict[int, float], context: int = 128) -> CostCurve:
    return CostCurve(tuple(CostPoint(width, context, cost) for width, cost in costs.items()))


# Two and three rows cost more than four, as they do on processors without kernels for them.
CLIFF = {1: 10.0, 2: 22.0, 3: 24.0, 4: 10.8, 8: 12.4, 16: 14.9, 32: 21.0}

curves = st.dictionaries(st.integers(2, 200), st.floats(0.01, 1e4), max_size=8).flatmap(
    lambda more: st.floats(0.01, 1e4).map(lambda one: curve_of({1: one} | more))
)


def test_a_measured_width_costs_what_was_measured() -> None:
    curve = curve_of(CLIFF)
    assert {width: curve.cost(width) for width in CLIFF} == CLIFF
    assert (curve.widths, curve.contexts) == (tuple(CLIFF), (128,))


def test_between_two_widths_the_cost_is_interpolated() -> None:
    curve = curve_of({1: 10.0, 4: 13.0, 8: 21.0})
    assert [curve.cost(width) for width in (2, 3, 5, 6)] == [11.0, 12.0, 15.0, 17.0]


def test_beyond_the_widest_a_row_costs_what_the_last_ones_did() -> None:
    assert curve_of({1: 10.0, 4: 10.0, 8: 20.0}).cost(24) == 60.0
    assert curve_of({1: 10.0, 32: 10.5, 64: 11.0}).cost(128) == 12.0
    assert curve_of({1: 10.0, 32: 12.0, 64: 11.0}).cost(128) == 11.0  # noise: no row is for free
    assert curve_of({1: 10.0}).cost(3) == 30.0


@pytest.mark.parametrize(
    ("context", "expected"), [(None, 1.0), (0, 1.0), (100, 1.0), (599, 3.0), (10**6, 3.0)]
)
def test_the_nearest_context_counts_and_the_shortest_where_none_is_named(
    context: int | None, expected: float
) -> None:
    curve = CostCurve((CostPoint(1, 1024, 3.0), CostPoint(1, 128, 1.0)))
    assert curve.cost(1, context) == expected
    assert curve.contexts == (128, 1024)


def test_relative_costs_are_in_passes_over_one_row_at_the_same_context() -> None:
    points = (CostPoint(1, 8, 2.0), CostPoint(4, 8, 3.0), CostPoint(1, 64, 4.0))
    curve = CostCurve((*points, CostPoint(4, 64, 10.0)))
    assert (curve.relative(4), curve.at(64).relative(4)) == (1.5, 2.5)
    assert (curve.widest(0.5), curve.at(64).widest(0.5)) == (4, 1)


@pytest.mark.parametrize(
    ("extra", "expected"), [(0.0, 1), (0.07, 1), (0.1, 4), (0.25, 8), (0.5, 16), (1.1, 32)]
)
def test_the_widest_may_lie_beyond_a_cliff(extra: float, expected: int) -> None:
    assert curve_of(CLIFF).widest(extra) == expected


@given(curves, st.floats(0, 5))
def test_the_widest_is_the_last_one_within_the_limit(curve: CostCurve, extra: float) -> None:
    found = curve.widest(extra)
    within = [width for width in curve.widths if curve.cost(width) <= (1 + extra) * curve.cost(1)]
    assert found == max(within)


def test_of_widths_that_hardly_differ_one_stays() -> None:
    seen = curve_of({width: 10.0 + width for width in range(1, 700)})
    some = seen.coarse(256)
    assert some.widths[:20] == (*range(1, 17), 18, 20, 22, 24) and some.widths[-2:] == (240, 256)
    assert all(some.cost(width) == pytest.approx(seen.cost(width)) for width in range(1, 700))
    assert seen.coarse(40).widths[-3:] == (32, 36, 40)
    assert curve_of(CLIFF).coarse(256) == curve_of(CLIFF)
    # What was measured stands for its neighbours.
    assert curve_of({1: 10.0, 19: 20.0, 21: 22.0}).coarse(256).widths == (1, 19, 21)
    assert curve_of({1: 10.0, 20: 20.0, 21: 22.0}).coarse(256).widths == (1, 20)


@given(curves)
def test_records_bring_back_the_same_curve(curve: CostCurve) -> None:
    assert CostCurve.from_records(json.loads(json.dumps(curve.to_records()))) == curve


@pytest.mark.parametrize(
    "records",
    [
        [],
        ["width"],
        [{"width": 1, "context": 8}],
        [{"width": None, "context": 8, "milliseconds": 1.0}],
        [{"width": "one", "context": 8, "milliseconds": 1.0}],
        [{"width": float("inf"), "context": 8, "milliseconds": 1.0}],
        [{"width": 1, "context": 8, "milliseconds": float("nan")}],
        [{"width": 1, "context": 8, "milliseconds": 1e-300}],
        [{"width": 1, "context": 8, "milliseconds": 1e300}],
        [{"width": width, "context": 8, "milliseconds": 1.0} for width in (1, 1 << 31)],
        None,
    ],
)
def test_other_records_are_refused(records: Any) -> None:
    with pytest.raises(ValueError):
        CostCurve.from_records(records)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "at least one point"),
        ([(0, 8, 1.0)], "a width below 1"),
        ([(1, -1, 1.0)], "a context below 0"),
        ([(1, 8, 0.0)], "a time that is not positive"),
        ([(1, 8, float("inf"))], "a time that is not positive"),
        ([(1, 8, 1.0), (1, 8, 2.0)], "twice"),
        ([(1, 8, 1.0), (2, 16, 2.0)], "one row at context 16 is missing"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(
    points: list[tuple[int, int, float]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CostCurve(tuple(CostPoint(*point) for point in points))


def test_a_pass_has_a_row() -> None:
    with pytest.raises(ValueError, match="at least one row, got 0"):
        curve_of(CLIFF).cost(0)
