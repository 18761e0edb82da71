"""`paceline tune --method` for methods with settings to try, on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.running import Command

from paceline.drafters import METHODS, open_settings, with_settings
from paceline.drafters.registry import Tried
from paceline.planning import curve_store, measure


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few passes and settings, little to measure bandwidth with, and a cache folder of our own."""
    monkeypatch.setattr(measure, "WIDTHS", (1, 4, 8))
    monkeypatch.setattr(measure, "_BUFFER_BYTES", 1 << 22)
    monkeypatch.setattr(curve_store, "cache_root", lambda: tmp_path / "cache")
    few: dict[str, Tried] = {
        "speculative": {("length",): (1, 3), ("branches",): (0, 1)},
        "ouroboros": {("window", "guesses"): (2, 3), ("inner",): ("", "plain")},
    }
    for name, tried in few.items():
        monkeypatch.setitem(METHODS, name, replace(METHODS[name], tried=tried))


@pytest.mark.parametrize(
    ("method", "start", "tried"),
    [
        ("speculative", {"length": 0, "branches": 1}, [{0, 1, 3}, {0, 1}]),
        ("ouroboros:length=2,window=2", {"guesses": 7, "inner": ""}, [{7, 2, 3}, {"", "plain"}]),
    ],
)  # fmt: skip
def test_settings_are_tried_and_the_best_ones_are_said(
    command: Command,
    tiny: Path,
    tmp_path: Path,
    method: str,
    start: dict[str, object],
    tried: list[set[object]],
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "tune.json"
    prompts.write_text('{"id": "a", "turns": ["hello"]}\n', encoding="utf-8")
    words = ["-m", tiny, "--repeats", 1, "--method", method, "--draft-model", tiny]
    code, shown, _ = command("tune", *words, "--prompt-file", prompts, "-n", 8, "--json", out)
    assert code == 0
    found = json.loads(out.read_text())["settings"]
    values = [
        {trial["settings"][step["settings"][0]] for trial in step["trials"]}
        for step in found["steps"]
    ]
    assert values == tried
    assert found["steps"][0]["trials"][0]["settings"].keys() == start.keys()
    assert found["last"][0]["settings"] == start and len(found["last"]) <= 2
    for step in found["steps"]:
        assert step["best"] in [trial["settings"] for trial in step["trials"]]
        assert all(trial["different"] == 0 for trial in step["trials"])
    assert found["best"] in {trial["method"] for trial in found["last"]}
    assert f"--method {found['best']}" in shown
    assert all(setting in found["best"] for setting in method.partition(":")[2].split(","))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "speculative", "--verify"), "leave out --verify and --plot"),
        (("--method", "medusa"), "there is nothing to tune for"),
        (("--method", "speculative:length=1,branches=0"), "there is nothing to tune for"),
        (("--method", "anpd", "--draft-model", "x"), "takes no draft model"),
        (("--method", "speculative", "--repeats", "0"), "--repeats"),
    ],
)
def test_what_does_not_fit_is_said_before_a_model_is_loaded(
    command: Command, words: tuple[str, ...], message: str
) -> None:
    ran = command("tune", "-m", "no such model", *words)
    assert (ran.code, ran.out) == (2, "") and message in ran.said
    assert "Traceback" not in ran.err


def test_the_settings_of_a_method_are_those_it_leaves_open() -> None:
    start, tried = open_settings("ouroboros:draft=x,guesses=4")
    assert (start, list(tried)) == ({"window": 0, "inner": ""}, [("window",), ("inner",)])
    assert open_settings("anpd") == ({}, {})
    method = with_settings("ouroboros:draft=(a,b),window=3", {"window": 9, "inner": "plain"})
    assert method == "ouroboros:draft=(a,b),window=9,inner=plain"
    assert with_settings("ouroboros", {}) == "ouroboros"
