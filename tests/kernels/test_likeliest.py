"""The largest of scores, by the library and without it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from paceline.kernels import likeliest as module
from paceline.kernels.likeliest import likeliest
from paceline.kernels.native.calls import kernels, unavailable

TIERS = () if unavailable() else kernels().tiers


@pytest.fixture(params=["", *TIERS])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the library, and with each set of instructions."""
    if not request.param:
        monkeypatch.setattr(module, "unavailable", lambda: "was not built")
        yield
        return
    before = kernels().tier
    kernels().use(request.param)
    yield
    kernels().use(before)


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize(("numbers", "most"), [(1, 3), (7, 7), (64, 2), (70, 10), (8192, 5)])
def test_they_are_the_largest_with_their_shares(numbers: int, most: int) -> None:
    rng = np.random.default_rng(numbers)
    rows = (4 * rng.standard_normal((3, numbers))).astype(np.float32)
    rows[1] = np.round(rows[1])  # many are equal: the first comes first
    places, shares = likeliest(rows, most)
    exact = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    expected = np.argsort(-rows, axis=1, kind="stable")[:, :most]
    assert np.array_equal(places, expected)
    assert shares == pytest.approx(np.take_along_axis(exact, expected, 1), rel=1e-4, abs=1e-7)


@pytest.mark.usefixtures("_how")
def test_what_cannot_be_said_has_no_share() -> None:
    inf, nan = np.inf, np.nan
    odd = [[-inf] * 4, [nan] * 4, [1, inf, 0, inf], [3, nan, 1, 2]]
    rows = np.array([[-inf, 2, -inf, 1], *odd], dtype=np.float32)
    places, shares = likeliest(rows, 3)
    assert places.tolist() == [[1, 3, 0], [0, 0, 0], [0, 0, 0], [1, 3, 0], [0, 3, 2]]
    assert shares[0].tolist() == pytest.approx([0.7310586, 0.2689414, 0])
    assert not shares[1:].any()
