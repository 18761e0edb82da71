"""The load generator: against a server that is right, and against what it must find."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.bench.checkout import ROOT
from tests.tiny import save_tiny_llama

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

BENCHMARKS = str(ROOT / "benchmarks")
FILES = {"mt_bench": "What is {}?", "cnndm": "Summarize: {} fell.", "jfleg": "Mend: {} are."}


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One of the scripts, which import each other as the scripts that they are."""
    monkeypatch.setattr(sys, "path", [BENCHMARKS, *sys.path])
    found: ModuleType = import_module(name)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and short prompts of all kinds."""
    found = tmp_path_factory.mktemp("load")
    save_tiny_llama(found / "tiny")
    for task, text in FILES.items():
        records = [
            {"turns": [text.format(word)], "reference_documents": [f"{word} is"]}
            for word in ("snow", "a lake", "light")
        ]
        lines = [json.dumps(record) for record in records]
        (found / f"{task}.jsonl").write_text("\n".join(lines))
    return found


def run(folder: Path, *words: str) -> dict[str, Any]:
    result = folder / "result.json"
    common = ["--data", str(folder), "--json", str(result), "--model", str(folder / "tiny")]
    common += ["--method", "anpd", "--pool", "9", "--max-tokens", "12"]
    script = f"{BENCHMARKS}/serve_load.py"
    done = subprocess.run(
        [sys.executable, script, *words, *common], capture_output=True, text=True, timeout=300
    )
    content: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    assert done.returncode == 0, f"{done.stderr}\n{content}"
    return content


def test_a_soak_finds_nothing_wrong(folder: Path) -> None:
    found = run(folder, "soak", "--clients", "6", "--seconds", "6", "--misbehaving", "0.3")
    assert found["well"] is True
    assert found["faults"] == 0
    for what in ("answers", "hung_up", "malformed"):
        assert found["counts"][what] > 0
    assert found["stopped"]["exit_code"] == 0
    assert found["at_rest_afterwards"] is True
    assert all(point["resident_bytes"] > 0 for point in found["memory"])


def test_rates_are_measured_by_clients_and_variants(folder: Path) -> None:
    found = run(folder, "throughput", "--at-once", "1,3")
    assert [(row["clients"], row["variant"]) for row in found["rows"]] == [
        (clients, variant) for clients in (1, 3) for variant in ("auto", "off", "prediction")
    ]
    for row in found["rows"]:
        assert row["complaints"] == []
        assert row["answers"] == 9
        assert row["tokens_per_second"] > 0
        assert row["first_token_median"] <= row["first_token_p95"]
        assert sum(kind["tokens"] for kind in row["kinds"].values()) == row["tokens"]


def test_every_malformed_request_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = module("serve_malformed", monkeypatch).malformed("toy")
    assert len(variants) >= 200
    assert len({variant.data for variant in variants}) == len(variants)


def test_what_is_wrong_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    soaking = module("serve_soak", monkeypatch)
    right = module("serve_pool", monkeypatch).Expected("a b", "stop", 3)
    for text, reason, tokens, faults in (
        ("a b", "stop", 3, 0),
        ("a c", "stop", 3, 1),
        ("a b", "length", 3, 1),
        ("a b", "stop", 2, 1),
    ):
        tally = soaking.Tally()
        soaking.compare(tally, right, text, reason, tokens)
        assert tally.faults == faults
    tally = soaking.Tally()
    tally.statuses.update([200, 400, 429, 503])
    assert tally.faults == 0
    tally.statuses[500] += 1
    assert tally.faults == 1
