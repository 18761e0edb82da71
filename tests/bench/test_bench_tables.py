"""Bounds in the tables of docs/bench.md, from trials whose times are known beforehand."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.entries import Entry
from paceline.bench.results import ResultFile
from paceline.stats import Stats
from tests.bench.checkout import ROOT


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with result files in the test's own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setattr(import_module("papers"), "RESULTS", tmp_path)
    return import_module("bench_tables")


def trial(method: str, prompt: str, repeat: int, seconds: float, drafting: float = 0.0) -> Entry:
    stats = Stats(rounds=10, tokens=10, draft_seconds=drafting)
    return Entry("s", "", prompt, 0, repeat, method, 3, 10, seconds, stats, output=(1,) * 10)


def test_free_drafting_takes_every_trials_own_drafting_away(tables: Any, tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "run-free-drafting.jsonl", {"run": {}})
    for prompt in "ab":
        for repeat, (seconds, drafting) in enumerate(((3.0, 2.0), (2.0, 0.5), (4.0, 1.0))):
            file.append(trial("plain", prompt, repeat, 4.0))
            file.append(trial("auto", prompt, repeat, seconds, drafting))
            file.append(trial("pld", prompt, repeat, 2.0 + repeat))
    *_, auto, pld, fastest = tables.texts("run", "free-drafting").splitlines()
    # 4 s by the median of 1 s, 1.5 s and 3 s.
    assert auto == "| `auto` | 1.33x | 0 of 2 | 1.33x | 200.00 | 2.67x |"
    assert pld.endswith("| 1.33x | 0 of 2 | 1.33x | 0.00 | 1.33x |")
    # Chosen by the first trial, 2 s, and timed by the others, 3 s and 4 s.
    assert fastest.startswith("| the fastest of the others for each text | 1.14x |")
