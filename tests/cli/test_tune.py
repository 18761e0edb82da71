"""`paceline tune` as its user meets it, and what the next session makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Command
from tests.forked import Forked
from tests.helpers import RandomTrees
from tests.tiny import toy_session

import paceline
from paceline.cli import common, tune
from paceline.cli.bench import shared
from paceline.cli.tune import _bar
from paceline.kernels.native.calls import unavailable
from paceline.options import Options
from paceline.planning import measure
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.curve_store import curve_key, curve_path, load_curve
from paceline.planning.planner import MOST_NODES, TreePlanner
from paceline.planning.sizing import best_chain
from paceline.tables import Table


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and little to measure bandwidth with."""
    monkeypatch.setattr(measure, "_BUFFER_BYTES", 1 << 22)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_shows_writes_and_stores_the_curve(
    command: Command, tiny: Path, tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "curve.json"
    code, out, err = command("tune", "-m", tiny, "--repeats", 2, "--json", path)
    assert (code, err.strip()) == (0, "") or (code == 0 and unavailable())  # which is told
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for key in ("bandwidth_gb_per_s", "floor_milliseconds", "floor_share"):
        assert report[key] > 0
    assert report["command"] == f"paceline tune -m {tiny} --repeats 2 --json {path}"
    assert {"processor", "threads", "device"} <= report["machine"].keys()
    assert {"paceline", "torch"} <= report["versions"].keys()
    curve = CostCurve.from_records(report["curve"])
    assert (curve.widths, curve.contexts) == (measure.WIDTHS, (128,))
    floor = report["weight_bytes"] / report["bandwidth_gb_per_s"] / 1e6
    assert report["floor_milliseconds"] == pytest.approx(floor)
    assert report["floor_share"] == pytest.approx(floor / curve.cost(1))
    assert report["widest"] == {
        "0.10": curve.widest(0.1),
        "0.25": curve.widest(0.25),
        "0.50": curve.widest(0.5),
    }
    (stored,) = (cache / "curves").iterdir()
    assert out.splitlines()[-1] == f"stored in {stored}"
    assert report["planned"] == {f"{share}": best_chain(curve, share) for share in (0.3, 0.6, 0.9)}
    assert json.loads(stored.read_text(encoding="utf-8"))["curve"] == report["curve"]
    rows = {cells[1].strip(): cells for line in out.splitlines() if (cells := line.split("│"))[1:]}
    assert {"floor", *map(str, measure.WIDTHS)} <= rows.keys()
    for width in measure.WIDTHS:
        assert rows[str(width)][3].strip() == f"{curve.cost(width):.2f}"
        assert rows[str(width)][4].strip() == f"{curve.relative(width):.2f}x"
    for words in (
        "memory bandwidth",
        "floor: ",
        "plain decoding: ",
        "10% slower",
        "50% slower",
        "best chain if",
    ):
        assert words in out


def test_layers_that_could_not_be_packed_are_named(command: Command, tiny: Path) -> None:
    code, _, err = command("generate", "hello", "-m", tiny, "-n", 1, "--dtype", "float64")
    assert code == 0 and "linear layers unchanged: weights in float64" in err


def test_the_next_session_plans_by_the_curve(command: Command, tiny: Path) -> None:
    assert paceline.load(str(tiny), measure=False).host.curve is None
    assert command("tune", "-m", tiny, "--repeats", 1)[0] == 0
    # Measuring would replace the curve if other work had slowed down its passes.
    session = paceline.load(str(tiny), measure=False)
    key = curve_key(session.target, session.fingerprint)
    measured = load_curve(key)
    assert measured is not None
    assert (session.host.curve, session.budget) == (measured, None)
    assert session.new_planner().curve == measured
    assert paceline.load(str(tiny), dtype="bfloat16", measure=False).host.curve is None
    curve_path(key).write_text("damaged")
    assert paceline.load(str(tiny), measure=False).host.curve is None
    assert command("tune", "-m", tiny, "--repeats", 1)[0] == 0
    assert load_curve(key) is not None


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({}, True),
        ({"method": "plain"}, False),
        ({"options": Options(budget=4)}, False),
        ({"method": "plain", "measure": True}, True),
        ({"measure": False}, False),
    ],
)
def test_where_trees_are_planned_a_session_knows_what_passes_cost(
    cache: Path, tiny: Path, options: dict[str, Any], known: bool
) -> None:
    session = paceline.load(str(tiny), **options)
    assert (session.host.curve is not None) == known
    assert (session.new_planner().curve is not None) == known


@pytest.mark.parametrize(
    ("sessions", "own", "expected"),
    [(3, None, 3), (3, 0, 0), (3, 2, 2), (None, 2, 2), (None, None, None)],
)
def test_a_request_without_a_budget_has_the_sessions_or_a_plan(
    sessions: int | None, own: int | None, expected: int | None
) -> None:
    """Whatever writes the text: one prompt, a batch, or a stream."""
    asked: list[int] = []

    class Curious(RandomTrees):
        """Notes the budgets it is given."""

        def propose(self, budget: int) -> Any:
            asked.append(budget)
            return super().propose(budget)

    session = toy_session(lambda: Curious(16, 0), budget=sessions, options=Options(budget=own))
    session.generate("once", max_new_tokens=4)
    session.generate_batch(["once", "upon"], max_new_tokens=4)
    list(session.stream("once", max_new_tokens=4))
    if expected is None:  # as many as were of use lately, and some more
        assert len(set(asked)) > 1 and 0 < min(asked) <= max(asked) <= MOST_NODES
    else:
        assert set(asked) == {expected}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tune --repeats 0", "--repeats"),
        ("tune --repeats many", "--repeats"),
        ("tune --threads 0", "--threads"),
        ("tune {tiny}", "unexpected extra argument"),
        ("tune -m nonsense", "unknown model 'nonsense'"),
        ("tune -m {tiny} --device nonsense", "no device 'nonsense'"),
        ("tune -m {tiny} --dtype int8", "dtype 'int8'"),
        ("tune -m {tiny} --json {dir}", "cannot write"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    command: Command, tiny: Path, tmp_path: Path, cache: Path, words: str, expected: str
) -> None:
    given = (word.format(tiny=tiny, dir=tmp_path) for word in words.split())
    code, out, err = command(*given)
    assert (code, out) == (2, "")
    (sentence,) = filter(str.strip, err.splitlines())
    assert sentence.startswith("error: ")
    assert expected in sentence
    assert not (cache / "curves").exists()


def test_results_are_not_lost_where_the_cache_cannot_be_written(
    command: Command, tiny: Path, tmp_path: Path, cache: Path
) -> None:
    cache.write_text("in the way")
    path = tmp_path / "curve.json"
    code, out, err = command("tune", "-m", tiny, "--repeats", 1, "--json", path)
    assert code == 2
    assert "plain decoding: " in out
    assert "error: cannot write to the cache folder" in err
    assert path.exists()


def test_results_are_kept_if_nobody_reads_them(tiny: Path, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "curve.json"
    words = ["tune", "-m", str(tiny), "--repeats", "1", "--json", str(path)]
    process = Forked(["paceline", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.wait(timeout=120)
    (stored,) = (cache / "curves").iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))["curve"] and stored.stat().st_size


def test_ctrl_c_ends_it_without_a_word(tiny: Path, cache: Path) -> None:
    process = Forked(
        ["paceline", "tune", "-m", str(tiny), "--repeats", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"FORCE_COLOR": "1", "TERM": "xterm"},
        bufsize=0,
    )
    assert process.stderr is not None
    seen = b""
    while b"measuring" not in seen and (more := process.stderr.read(1)):
        seen += more
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert not (cache / "curves").exists()


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, ""), (1.0, "█" * 24), (0.5, "█" * 12), (1 / 48, "▌"), (7.0, "█" * 24)],
)
def test_a_bar_is_as_long_as_its_share(share: float, expected: str) -> None:
    assert _bar(share) == expected


def test_what_is_tried_is_planned_by_the_curve_just_measured(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's own texts, and not only the drafters that are made of its host."""
    old = CostCurve((CostPoint(1, 8, 1.0),))
    session = toy_session("plain", curve=old)
    monkeypatch.setattr(common, "open_session", lambda *words, **options: session)
    used: list[CostCurve | None] = []

    class Study:
        def run(self, tryout: shared.Tryout) -> None:
            session = tryout.session
            planner = session.texts._batch._planner
            assert isinstance(planner, TreePlanner)
            used.extend([session.host.curve, planner.curve, session.new_planner().curve])

        def as_json(self) -> dict[str, Any]:
            return {}

        def table(self) -> Table:
            return Table("", ["width"], [])

        def lines(self) -> list[str]:
            return []

    monkeypatch.setattr(tune, "_study", lambda *options: Study())
    path = tmp_path / "tune.json"
    assert command("tune", "--method", "ppd", "--repeats", 1, "--json", path)[0] == 0
    measured = CostCurve.from_records(json.loads(path.read_text(encoding="utf-8"))["curve"])
    assert used == [measured] * 3 and measured != old
