"""`paceline train data` as its user meets it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.cli.running import Command
from tests.training.shared import content, prompt_file

from paceline.training import self_distillation
from paceline.training.data import TrainingData, load_manifest


def test_it_answers_interrupted_or_not(
    command: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_distillation, "SHARD_PROMPTS", 4)
    plain = prompt_file(tmp_path, 9)
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(prompt_file(tmp_path, 2, "packed.jsonl").read_bytes()))
    words = ["-m", tiny, "--prompts", plain, "--prompts", packed, "--licence", "MIT"]
    words += ["--tokens", 100, "-n", 12, "--batch", 2, "--temperature", 0.8]

    ran = command("train", "data", *words, "--out", tmp_path / "whole")
    data = TrainingData(tmp_path / "whole")
    assert (ran.code, ran.out) == (0, "")
    made = data.manifest
    assert f"holds {made.answers} answers with {made.tokens} tokens" in ran.said
    assert made.tokens >= 100 and made.licences == {"MIT": made.answers}
    about = made.about
    assert about["command"].startswith("paceline train data -m")
    assert {"machine", "versions", "model"} <= about.keys()
    assert data.manifest.run["model"] == about["model"]["fingerprint"]

    make, calls = self_distillation.answer_batch, 0

    def interrupted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return make(*arguments)  # type: ignore[arg-type]

    out = tmp_path / "interrupted"
    monkeypatch.setattr(self_distillation, "answer_batch", interrupted)
    ran = command("train", "data", *words, "--out", out)
    assert ran.code == 130 and "repeat the command to continue" in ran.said
    kept = load_manifest(out)
    assert kept is not None and kept.answers == 4
    assert command("train", "data", *words, "--out", out)[0] == 0
    there, whole = content(out), content(tmp_path / "whole")
    del there["manifest.json"], whole["manifest.json"]  # they name their own command
    assert there == whole


def test_it_says_what_was_left_out_and_when_prompts_are_used_up(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"turns": ["x" * 300]}) + '\n{"turns": ["y"]}', encoding="utf-8")
    words = ["-m", tiny, "--prompts", path, "--tokens", 50, "-n", 4, "--out", tmp_path / "data"]
    ran = command("train", "data", *words)
    assert (ran.code, ran.out) == (0, "")
    assert "prompts left out: 1, longer than 1024 tokens or the model's context" in ran.said
    assert "ran out after" in ran.said and "of 50 tokens" in ran.said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompts", "missing.jsonl"], "cannot read the prompt file missing.jsonl"),
        (
            ["--licence", "MIT", "--licence", "MIT"],
            "2 licences were given, but the files of prompts number 1",
        ),
        (["--temperature", "-1"], "temperature must be"),
        (["--method", "magic"], "unknown method 'magic'"),
        (["--tokens", "0"], "--tokens"),
        (["--out", "prompts.jsonl/data"], "cannot write prompts.jsonl/data: Not a directory"),
        (["-n", "0"], "max_new_tokens must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence_before_the_model_is_loaded(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    prompt_file(tmp_path, 1)
    given = dict(zip(words[::2], words[1::2]))
    defaults = {"--prompts": "prompts.jsonl", "--tokens": "9", "--out": "data", "-m": "no-model"}
    rest = [word for name in defaults.keys() - given.keys() for word in (name, defaults[name])]
    ran = command("train", "data", *rest, *words)
    assert ran.code == 2 and ran.said.startswith("error: ") and message in ran.said


def test_prompt_files_may_have_names_that_are_no_text(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    path = prompt_file(tmp_path, 2).rename(tmp_path / "caf\udce9.jsonl")
    words = ["-m", tiny, "--prompts", path, "-n", 4, "--out", tmp_path / "data"]
    assert command("train", "data", *words, "--tokens", 3).code == 0
    assert command("train", "data", *words, "--tokens", 8).code == 0
    data = TrainingData(tmp_path / "data")
    assert str(path) in data.manifest.about["command"]
    assert {answer.source for answer in data} == {path.name}


def test_another_run_is_one_sentence(command: Command, tiny: Path, tmp_path: Path) -> None:
    path = prompt_file(tmp_path, 2)
    words = ["-m", tiny, "--prompts", path, "--tokens", 5, "-n", 4, "--out", tmp_path / "data"]
    assert command("train", "data", *words)[0] == 0
    ran = command("train", "data", *words, "--seed", 3)
    assert ran.code == 2 and "holds data made with another seed (0, not 3)" in ran.said
