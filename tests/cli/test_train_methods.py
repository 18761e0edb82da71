"""`paceline train medusa` and the other rows of `TRAINED` as their user meets them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from tests.cli.running import Command
from tests.tiny import save_tiny_llama
from tests.training.shared import make, prompt_file

from paceline.drafters.prompt_tokens import PromptTokens
from paceline.drafters.trained_heads import ChimeraParts, EagleParts, MedusaParts
from paceline.errors import UsageError
from paceline.training import dataset, method_run
from paceline.training import trainer as trainer_module
from paceline.training.method_run import MethodRun
from paceline.training.methods import TRAINED

KINDS = {
    "medusa": MedusaParts,
    "chimera": ChimeraParts,
    "eagle": EagleParts,
    "ppd": PromptTokens,
}


@pytest.fixture
def places(command: Command, tmp_path: Path) -> list[object]:
    """Words that name a small model and its answers."""
    model, data = save_tiny_llama(tmp_path / "tiny"), tmp_path / "data"
    words = ["--prompts", prompt_file(tmp_path, 12), "--tokens", 200, "-n", 20, "--out", data]
    assert command("train", "data", "-m", model, *words)[0] == 0
    return ["-m", model, "--data", data]


@pytest.mark.parametrize("method", KINDS)
def test_methods_are_trained_interrupted_or_not(
    command: Command,
    places: list[object],
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "parts"
    monkeypatch.setattr(dataset, "_MOST_READ", 3)
    words = [method, *places, "--out", out, "--vocabulary", 40, "--cache", tmp_path / "cache"]
    words += ["--steps", 4, "--rows", 4, "--length", 48, "--context", 8, "--threads", 1]
    words += ["--validation", 0.2, "--test", 0.2, "--checkpoint-every", 1, "--heads", 2]
    turn = "A text that is long enough to learn from. " * 2
    words += ["--texts", prompt_file(tmp_path, 9, "read.jsonl", turns=[turn]), "--licence", "MIT"]
    with monkeypatch.context() as patch:
        save = trainer_module.save_checkpoint

        def save_and_stop(*arguments: object) -> None:
            save(*arguments)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        patch.setattr(trainer_module, "save_checkpoint", save_and_stop)
        ran = command("train", *words)
        assert ran.code == 130 and "keeps the latest checkpoint; repeat the command" in ran.said
    ran = command("train", *words)
    assert (ran.code, ran.out) == (0, "")
    assert "are left out in whole or in part: 3 pieces of 256 tokens are the most" in ran.said
    assert "head 1: top-1" in ran.said and f"--method {method}:parts={out}" in ran.said
    parts = KINDS[method].from_pretrained(out)
    assert parts.record["steps"] == 4 and parts.acceptance.distances == 2
    assert parts.record["texts"]["reads"]["texts"] > 0
    assert parts.record["run"]["data"][1]["licence"] == "MIT"
    assert parts.record["about"]["command"].startswith(f"paceline train {method}")
    assert parts.base.hidden_size == parts.record["run"]["base"]["hidden_size"]
    assert list((tmp_path / "cache").glob("shard-*.states"))
    ran = command("train", *words, "--seed", 3)
    assert (
        ran.code == 2
        and f"holds {parts.kind} trained with another seed in its settings" in ran.said
    )
    ran = command("train", *words, "--out", tmp_path / "more", "--context", 9, "--cache-size", 1e-6)
    assert ran.code == 2 and "allow more with --cache-size" in ran.said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["medusa", "--form", "low"], "form must be one of compact, full, got 'low'"),
        (["medusa", "--layers", "0"], "compact heads need a residual block"),
        (["medusa", "--rows", "0"], "rows must be at least 1"),
        (["medusa", "--loss", "l2"], "loss must be one of blend, kl, labels, got 'l2'"),
        (["medusa", "--licence", "MIT"], "--licence applies to the files of --texts"),
        (["medusa", "--cache-size", "-1"], "the size of a cache must be a number >= 0, got -1.0"),
        (["medusa", "--cache-size", "nan"], "the size of a cache must be a number >= 0, got nan"),
        (["medusa", "--cache-size", "inf"], "the size of a cache must be a number >= 0, got inf"),
        (["medusa", "--cache", "./out"], "--cache and --out are both out: name two folders"),
        (["ppd", "--epts", "0"], "epts must be at least 1"),
        (["ppd", "--start", "nowhere"], "nowhere holds nothing that 'paceline train ppd' has"),
        (["draft", "--layers", "0,x"], "layers must be numbers separated by commas, got '0,x'"),
        (["chimera", "--order", "6"], "order must be 1 to 5, got 6"),
        (["chimera", "--bottom", "lstm"], "bottom must be one of ngram"),
        (["chimera", "--state-weight", "-1"], "state_weight must be at least 0"),
        (["chimera", "--bottom", "transformer frozen", "--own-guesses"], "leave out own guesses"),
        (["chimera", "--out", "file/out"], "cannot write file/out: Not a directory"),
        (["medusa", "--data", "nowhere"], "nowhere holds no training data"),
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
    (tmp_path / "file").write_text("")
    make(tmp_path / "data", prompt_file(tmp_path, 1))
    defaults = ["--data", "data", "-m", "no-model"]
    out = [] if "--out" in words else ["--out", "out"]
    ran = command("train", *words, *defaults, *out)
    assert ran.code == 2 and ran.said.startswith("error: ") and message in ran.said


def test_the_root_of_a_disk_is_a_folder_too(
    command: Command, places: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(reader: object, model: object, run: MethodRun, *others: object) -> None:
        raise UsageError(f"nothing is written by this test, but to {run.cache}")

    monkeypatch.setattr(method_run, "train_method", stop)
    ran = command("train", "medusa", *places, "--out", "/")
    assert ran.code == 2 and f"but to {Path('/').resolve()}-states" in ran.said


@pytest.mark.parametrize("method", TRAINED)
def test_every_setting_is_an_option(command: Command, method: str) -> None:
    ran = command("train", method, "--help")
    shown = "".join(ran.out.split())
    for field in fields(TRAINED[method]):
        flag = f"--{field.name.replace('_', '-')}"
        assert flag[:14] in shown  # long names are wrapped
        assert "".join(field.metadata["help"].split())[:8] in shown


def test_help_and_settings_take_no_torch() -> None:
    code = (
        "import sys, paceline.cli.train\n"
        "made = [kind() for kind in paceline.cli.train.TRAINED.values()]\n"
        "assert made and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
