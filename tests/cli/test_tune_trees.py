"""`paceline tune --method`, with prompt tokens of random numbers on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import Command
from tests.prompt_parts import random_parts

from paceline.models import load_causal_lm
from paceline.planning import curve_store, measure


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few passes, little to measure bandwidth with, and a cache folder of our own."""
    monkeypatch.setattr(measure, "WIDTHS", (1, 4, 8, 12, 16))
    monkeypatch.setattr(measure, "_BUFFER_BYTES", 1 << 22)
    monkeypatch.setattr(curve_store, "cache_root", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def parts(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    loaded = load_causal_lm(str(tiny))
    vocab = loaded.model.config.vocab_size
    random_parts(2, vocab=vocab, fingerprint=loaded.fingerprint).save_pretrained(folder)
    return folder


def test_trees_are_predicted_drawn_and_measured(
    command: Command, tiny: Path, parts: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "turns": ["hello"]}\n', encoding="utf-8")
    out = tmp_path / "tune.json"
    words = ["-m", tiny, "--repeats", 2, "--method", f"ppd:parts={parts}", "--verify"]
    words += ["--prompt-file", prompts, "-n", 12, "--plot", tmp_path / "plots", "--json", out]
    code, shown, _ = command("tune", *words)
    assert code == 0
    trees = json.loads(out.read_text())["trees"]
    widths = {one["width"]: one for one in trees["widths"]}
    assert trees["best"] in widths and f"{trees['best']} *" in shown
    measured = [width for width, one in widths.items() if one["measured"]]
    assert trees["best"] in measured and trees["best_measured"] in measured
    assert all(len(widths[width]["measured"]) == 2 for width in measured)
    assert "root +" in shown and "rows promises" in shown
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"survey.png", "tree.png"}


def test_where_no_prompt_fits_nothing_is_measured(
    command: Command, tiny: Path, parts: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a,b"  # needs brackets in the notation of methods
    folder.symlink_to(parts)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "%s"}\n' % ("x" * 300), encoding="utf-8")
    words = ["-m", tiny, "--repeats", 1, "--method", f"ppd:parts=({folder})", "--verify"]
    ran = command("tune", *words, "--prompt-file", prompts)
    assert (ran.code, "there is nothing to compare: a was left out" in ran.said) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--verify",), "add --method ppd"),
        (
            ("--method", "anpd"),
            "nothing to tune for anpd: every setting is given, or its trees are sized",
        ),
        (("--method", "pdp"), "did you mean ppd"),
        (("--method", "ppd:size=8,width=8"), "a size or a width, not both"),
        (("--method", "ppd"), "there are no prompt tokens for this model"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    command: Command, tiny: Path, words: tuple[str, ...], message: str
) -> None:
    ran = command("tune", "-m", tiny, "--repeats", 1, *words)
    assert ran.code == 2 and message in ran.said and "Traceback" not in ran.err
