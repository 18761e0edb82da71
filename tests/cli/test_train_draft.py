"""`paceline train draft` as its user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import Command
from tests.tiny import save_tiny_llama
from tests.training.shared import prompt_file

import paceline
from paceline.models import load_causal_lm
from paceline.models.draft_folder import open_draft, read_draft_record
from paceline.training import trainer as trainer_module


@pytest.fixture
def places(command: Command, tmp_path: Path) -> tuple[Path, Path]:
    """A model of two layers, and its answers."""
    model, data = save_tiny_llama(tmp_path / "tiny"), tmp_path / "data"
    words = ["--prompts", prompt_file(tmp_path, 12), "--tokens", 200, "-n", 20, "--out", data]
    assert command("train", "data", "-m", model, *words)[0] == 0
    return model, data


def small(model: Path, data: Path) -> list[object]:
    return [
        *("draft", "-m", model, "--data", data, "--layers", "1", "--vocabulary", 50),
        *("--steps", 4, "--rows", 2, "--length", 48, "--context", 8, "--heads", 2),
        *("--validation", 0.2, "--test", 0.2, "--checkpoint-every", 1, "--threads", 1),
    ]


def test_a_draft_is_trained_interrupted_or_not(
    command: Command,
    places: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, out = small(*places), tmp_path / "draft"
    words += ["--texts", prompt_file(tmp_path, 9, "read.jsonl"), "--licence", "MIT"]
    words += ["--read-share", 0.5]
    with monkeypatch.context() as patch:
        save = trainer_module.save_checkpoint

        def save_and_stop(*arguments: object) -> None:
            save(*arguments)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        patch.setattr(trainer_module, "save_checkpoint", save_and_stop)
        ran = command("train", *words, "--out", out)
        assert ran.code == 130 and "keeps the latest checkpoint; repeat the command" in ran.said
    ran = command("train", *words, "--out", out)
    assert (ran.code, ran.out) == (0, "")
    assert "top-1" in ran.said and f"--method speculative:draft={out}" in ran.said
    training = json.loads((out / "training.json").read_text())
    assert training["about"]["command"].startswith("paceline train draft -m")
    assert training["run"]["data"][1]["licence"] == "MIT"
    assert training["texts"]["reads"]["texts"] > 0
    loaded = load_causal_lm(str(places[0]))
    assert read_draft_record(out).layers == (1,)
    draft = open_draft(out, loaded.model, loaded.fingerprint)
    assert draft.config.num_hidden_layers == 1
    ran = command("train", *words, "--out", out, "--seed", 3)
    assert (
        ran.code == 2
        and "holds a draft model trained with another seed in its settings (0, not 3)" in ran.said
    )


def test_a_draft_that_stands_alone_is_a_model(
    command: Command, places: tuple[Path, Path], tmp_path: Path
) -> None:
    words = [word for word in small(*places) if word not in ("--vocabulary", 50)]
    assert command("train", *words, "--standalone", "--out", tmp_path / "draft")[0] == 0
    answer = paceline.load(str(tmp_path / "draft")).generate("abc", max_new_tokens=5)
    assert len(answer.tokens) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "0,x"], "layers must be numbers separated by commas, got '0,x'"),
        (["--layers", "1,0"], "layers must be ascending"),
        (["--layers", "0,7"], "has the layers 0 to 1, got 0, 7"),
        (["--vocabulary", "999"], "the model has 257 tokens"),
        (["--vocabulary", "9", "--standalone"], "leave out --vocabulary or --standalone"),
        (["--loss", "x"], "loss must be one of blend, kl, labels"),
        (["--texts", "missing.jsonl"], "cannot read the prompt file missing.jsonl"),
        (["--licence", "MIT"], "name some with --texts"),
        (["--data", "nowhere"], "nowhere holds no training data"),
        (["--test", "0.000001"], "increase its share"),
    ],
)
def test_mistakes_are_one_sentence(
    command: Command,
    places: tuple[Path, Path],
    tmp_path: Path,
    words: list[str],
    message: str,
) -> None:
    ran = command("train", *small(*places), *words, "--out", tmp_path / "draft")
    assert ran.code == 2 and ran.said.startswith("error: ") and message in ran.said
