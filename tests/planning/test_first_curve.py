"""Rough curves, made where nobody has measured one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.tiny_models import new_model

from paceline.planning import curve_store
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.curve_store import curve_key, known_curve, load_curve, save_curve
from paceline.planning.measure import PassTimes
from paceline.protocols import Target
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.toy import ToyTarget

STEADY = {(1, 128): [0.001, 0.0012, 0.001], (8, 128): [0.002, 0.02, 0.0021]}
DISTURBED = STEADY | {(8, 128): [0.002, 0.02, 0.004]}
# All passes were slow by chance, those of one row most.
BUSY = {(1, 128): [2.4, 2.5, 2.4], (16, 128): [0.9, 1.0, 0.9]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def target() -> Target:
    return ToyTarget()


def times(
    monkeypatch: pytest.MonkeyPatch, found: PassTimes, plain: float = 0.001, wide: float = 0.0
) -> list[object]:
    """Passes take so long; returns how often each width is asked for."""
    calls: list[object] = []

    def time_passes(
        target: Target, widths: Sequence[int], contexts: Sequence[int], repeats: int
    ) -> PassTimes:
        if widths == (1, 8):
            return {(1, 1): [plain], (8, 1): [wide or 2 * plain]}
        calls.append(repeats)
        return found

    monkeypatch.setattr(curve_store, "time_passes", time_passes)
    return calls


def test_it_is_made_once_and_kept(
    target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, told = times(monkeypatch, STEADY), []
    for _ in range(2):
        curve = known_curve(target, "mark", progress=lambda *said: told.append((len(calls), *said)))
        assert curve is not None and (curve.cost(1), curve.cost(8)) == (1.0, 2.0)
    assert len(calls) == 1 and told == [(0, "measure", 0, None)]
    assert load_curve(curve_key(target, "mark"), cache) == curve
    assert known_curve(target, "another") is not None and len(calls) == 2


def test_what_was_measured_well_is_left_alone(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = CostCurve((CostPoint(1, 8, 5.0), CostPoint(4, 8, 9.0)))
    save_curve(curve_key(target, "mark"), tuned)
    for plain in (0.0035, 0.02):  # a slower pass may be due to other work
        calls = times(monkeypatch, STEADY, plain)
        assert known_curve(target, "mark") == known_curve(target, "mark", measure=False) == tuned
        assert not calls


@pytest.mark.parametrize(("plain", "wide"), [(0.001, 0.01), (0.005, 0.006)])
def test_a_curve_of_a_busy_machine_is_replaced(
    target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch, plain: float, wide: float
) -> None:
    key = curve_key(target, "mark")
    save_curve(key, CostCurve((CostPoint(1, 128, 5.0), CostPoint(8, 128, 10.0))))
    calls = times(monkeypatch, STEADY, plain, wide)
    curve = known_curve(target, "mark")
    assert curve is not None and curve.cost(1) == 1.0 and len(calls) == 1
    assert load_curve(key, cache) == curve


def test_without_a_sketch_there_is_none(
    target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = times(monkeypatch, STEADY)
    assert known_curve(target, "mark", measure=False) is None
    assert not calls and not list(cache.iterdir())


@pytest.mark.parametrize(("mark", "found"), [("mark", DISTURBED), ("", STEADY)])
def test_it_is_used_and_not_kept(
    target: Target,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    mark: str,
    found: PassTimes,
) -> None:
    """Where other work disturbed it, and for a model that cannot be told from others."""
    calls = times(monkeypatch, found)
    for _ in range(2):
        curve = known_curve(target, mark)
        assert curve is not None and curve.cost(8) == 2.0
    assert len(calls) == 2 and not list(cache.iterdir())


def test_a_cache_folder_that_cannot_be_written_is_no_reason_to_stop(
    target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(cache / "file"))
    times(monkeypatch, STEADY)
    assert known_curve(target, "mark") is not None


@pytest.mark.parametrize(
    ("plain", "repeats"), [(0.001, 5), (0.04, 5), (0.1, 3), (0.15, 2), (1.5, 1)]
)
def test_slow_passes_are_timed_less_often(
    target: Target, monkeypatch: pytest.MonkeyPatch, plain: float, repeats: int
) -> None:
    calls = times(monkeypatch, STEADY, plain)
    known_curve(target, "mark")
    assert calls == [repeats]


@pytest.mark.parametrize("room", [1, 2, 40, 256])
def test_real_passes_of_models_with_little_room(room: int) -> None:
    target = CausalLMTarget(new_model("llama", max_position_embeddings=room), check=False)
    assert target.max_context == room
    curve = known_curve(target, "mark")
    if room == 1:
        assert curve is None
    else:
        assert curve is not None
        assert curve.widths == tuple(w for w in curve_store._WIDTHS if w < room)
    target.close(target.open([0]))


def test_a_curve_that_falls_is_not_kept(
    target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times(monkeypatch, BUSY)
    assert known_curve(target, "mark") is not None
    assert load_curve(curve_key(target, "mark"), cache) is None
