"""`make gpu` on a machine without one: what it says, its prompts, its tables."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from tests.bench.checkout import ROOT, without_gpu


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import each other as the scripts that they are."""
    folders = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])


def _command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/gpu.py"), *words],
        env=without_gpu(**environment),
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_so_and_lists(tmp_path: Path) -> None:
    ran = _command("--out", str(tmp_path / "out"))
    assert ran.returncode == 2 and not (tmp_path / "out").exists()
    assert ran.stderr.startswith("gpu: this PyTorch sees no CUDA device") and ran.stdout == ""
    ran = _command("--out", str(tmp_path / "out"), "--list", "--model", "a/first", "--model", "b")
    assert ran.returncode == 0
    names = [line.split()[0] for line in ran.stdout.splitlines()]
    assert names[:4] == ["machine", "tests", "losslessness-float32", "losslessness-bfloat16"]
    assert {"methods-first", "methods-b", "passes-eager-b"} <= set(names)


def test_a_piece_without_weights_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--device", "cpu", "--rehearsal", "--out", str(out), "--only", "tune"]
    ran = _command(*words, PACELINE_CACHE=str(tmp_path))
    assert ran.returncode == 0
    record = json.loads((out / "state.json").read_text())["pieces"]["tune-smollm2-135m"]
    assert record["status"] == "left out" and "paceline models pull" in record["reason"]


def test_prompts_are_mixed_and_stay_what_they_are(tmp_path: Path) -> None:
    prompts = import_module("gpu_prompts")
    data, folder = tmp_path / "data", tmp_path / "prompts"
    data.mkdir()
    for name in ("canitedit", "cnndm", "xsum", "mt_bench"):
        lines = [json.dumps({"id": str(i), "turns": [f"{name} {i}"]}) for i in range(5)]
        (data / f"{name}.jsonl").write_text("\n".join(lines))
    prompts.write_prompts(folder, data, 4, 2)
    mixed = [json.loads(line) for line in (folder / "mixed.jsonl").read_text().splitlines()]
    assert [record["turns"][0] for record in mixed] == [
        "canitedit 0", "cnndm 0", "mt_bench 0", "canitedit 1", "xsum 0", "mt_bench 1",
    ]  # fmt: skip
    assert len((folder / "edits.jsonl").read_text().splitlines()) == 4
    prompts.write_prompts(folder, None, 4, 2)  # what is there will do
    with pytest.raises(UsageError, match="holds other prompts already"):
        prompts.write_prompts(folder, data, 3, 2)
    (data / "mt_bench.jsonl").unlink()
    with pytest.raises(UsageError, match=r"has none of mt_bench\.jsonl, vicuna_bench\.jsonl"):
        prompts.write_prompts(tmp_path / "other", data, 4, 2)


def _save(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def test_tables_show_what_is_there_and_no_more(tmp_path: Path) -> None:
    tools = import_module("gpu_tables")
    assert tools.tables(tmp_path) == ""
    failed = {"outcome": "failed", "seconds": 1.0, "reason": "assert 1 == 2"}
    outcomes = {"counts": {"passed": 3, "failed": 1}, "tests": {"a.py::b": failed}}
    _save(tmp_path, "tests.json", outcomes)
    rows = [{"width": 1, "paceline_ms": 2.0, "transformers_ms": 8.0}]
    section = {"context": 300, "widths": rows, "others": [{"context": 4000, "widths": rows}]}
    _save(tmp_path, "passes-graphs-a.json", {"passes": section})
    points = {"compiled": [[1, 300, 1.25], [8, 300, 1.5]], "eager": [[1, 300, 3.0]]}
    shapes = [{"model": "tiny", "engine": e, "points": found} for e, found in points.items()]
    _save(tmp_path, "shapes.json", {"shapes": shapes})
    _save(tmp_path, "passes-eager-a.json", {"machine": {}})  # it ran out of time
    (tmp_path / "memory-a.json").write_text("")  # was only opened
    record = {
        "methods": ["plain", "anpd"],
        "seeds": [0, 1],
        "differences": [{"method": "anpd", "mode": "seed 1", "decision_gap": -0.25}],
    }
    lines = f"{json.dumps(record)}\n{json.dumps(record)}\n{{"
    (tmp_path / "losslessness-bfloat16.jsonl").write_text(lines)
    text = tools.tables(tmp_path)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "### Tests that need a GPU",
        "### Losslessness",
        "### Passes beside transformers",
        "### Models with random weights",
    ]
    assert "3 passed, 1 failed.\n\n| failed | reason |" in text
    assert "| `a.py::b` | assert 1 == 2 |" in text
    assert "| bfloat16 | `generate`, greedy | 2 | 4 | 0 | - |" in text
    assert "| bfloat16 | plain decoding, sampled | 2 | 4 | 2 | 0.25 |" in text
    assert "| a | 4000 | 1 | - | 2.00 | - | 8.00 |" in text
    assert "| tiny | 300 | 8 | 1.50 | - |" in text and "| tiny | 300 | 1 | 1.25 | 3.00 |" in text
