"""`paceline train data` as its user meets it."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tiny import save_tiny_llama
from tests.training.shared import content, prompt_file

from paceline.cli import main
from paceline.training import self_distillation
from paceline.training.data import TrainingData

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `paceline train data` in this process: its exit code and standard error."""

    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["paceline", "train", "data", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        code, captured = int(ended.value.code or 0), capsys.readouterr()
        assert captured.out == ""
        return code, " ".join(captured.err.split())

    return run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model with room for 256 tokens."""
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def test_it_answers_interrupted_or_not(
    command: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_distillation, "SHARD_PROMPTS", 4)
    plain = prompt_file(tmp_path, 9)
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(prompt_file(tmp_path, 2, "packed.jsonl").read_bytes()))
    words = ["-m", tiny, "--prompts", plain, "--prompts", packed, "--licence", "MIT"]
    words += ["--tokens", 100, "-n", 12, "--batch", 2, "--temperature", 0.8]

    code, err = command(*words, "--out", tmp_path / "whole")
    data = TrainingData(tmp_path / "whole")
    assert code == 0
    assert f"holds {len(data)} answers with {data.manifest.tokens} tokens" in err
    assert data.manifest.tokens >= 100 and data.manifest.licences == {"MIT": len(data)}
    about = data.manifest.about
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
    code, err = command(*words, "--out", out)
    assert code == 130 and "repeat the command to go on" in err
    assert len(TrainingData(out, unfinished=True)) == 4
    assert command(*words, "--out", out)[0] == 0
    there, whole = content(out), content(tmp_path / "whole")
    del there["manifest.json"], whole["manifest.json"]  # they name their own command
    assert there == whole


def test_it_says_what_was_left_out_and_when_prompts_are_used_up(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"turns": ["x" * 300]}) + '\n{"turns": ["y"]}', encoding="utf-8")
    words = ["-m", tiny, "--prompts", path, "--tokens", 50, "-n", 4, "--out", tmp_path / "data"]
    code, err = command(*words)
    assert code == 0
    assert "prompts left out: 1, longer than 1024 tokens or than the model can read" in err
    assert "used up after" in err and "of 50 tokens" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompts", "missing.jsonl"], "cannot read the prompt file missing.jsonl"),
        (["--licence", "MIT", "--licence", "MIT"], "2 licences for 1 files"),
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
    code, err = command(*rest, *words)
    assert code == 2 and err.startswith("error: ") and message in err


def test_another_run_is_one_sentence(command: Command, tiny: Path, tmp_path: Path) -> None:
    path = prompt_file(tmp_path, 2)
    words = ["-m", tiny, "--prompts", path, "--tokens", 5, "-n", 4, "--out", tmp_path / "data"]
    assert command(*words)[0] == 0
    code, err = command(*words, "--seed", 3)
    assert code == 2 and "holds data made with another seed (0, not 3)" in err
