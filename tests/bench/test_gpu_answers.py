"""The script that answers prompts on a GPU writes what the decoding loop would."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from paceline.api import load
from paceline.errors import UsageError
from paceline.training.asking import Asking
from paceline.training.data import TrainingData
from paceline.training.order import read_prompt_files
from paceline.training.self_distillation import make_data
from tests.bench.checkout import ROOT
from tests.cpu_recorder import CpuRecorder
from tests.tiny import save_tiny_llama


def _prompts(folder: Path) -> Path:
    """Nine conversations, of one turn or three, and one whose prompt is too long."""
    turns = [[f"{n} times {n}?" * (1 + n % 4), "Why?", "So?"][: 1 + 2 * (n % 2)] for n in range(9)]
    turns.append(["too long" * 20])
    records = [{"id": f"sums/{n}", "turns": each} for n, each in enumerate(turns)]
    path = folder / "prompts.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def _answers(folder: Path) -> dict[str, tuple[Any, ...]]:
    data = TrainingData(folder)
    return {each.id: (each.prompt, each.tokens, each.finish_reason) for each in data}


def test_answers_are_those_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(ROOT / "benchmarks"), *sys.path])
    gpu_answers = import_module("gpu_answers")
    model, prompts = str(save_tiny_llama(tmp_path / "model")), _prompts(tmp_path)
    monkeypatch.setattr(gpu_answers, "recorder_for", lambda device: CpuRecorder())
    monkeypatch.setattr(gpu_answers, "_READ", 100)
    options = ["--rows", "4", "-n", "12", "--turns", "2", "--device", "cpu", "--dtype", "float32"]
    options += ["--longest-prompt", "150"]
    folders = ["--model", model, "--prompts", str(prompts), "--out", str(tmp_path / "script")]
    monkeypatch.setattr("sys.argv", ["gpu_answers.py", *folders, *options])
    gpu_answers.main()
    asking = Asking(max_new_tokens=12, method="plain")
    session = load(model, "plain")
    make_data(session, read_prompt_files([prompts]), 10**9, tmp_path / "loop", asking)
    found, wanted = _answers(tmp_path / "script"), _answers(tmp_path / "loop")
    assert len(found) == 13
    assert found == {name: wanted[name] for name in found}
    assert TrainingData(tmp_path / "script").manifest.skipped == 1
    with pytest.raises(UsageError, match="holds data already"):
        gpu_answers.main()
