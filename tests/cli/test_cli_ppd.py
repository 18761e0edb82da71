"""Prompt tokens and typical acceptance from the command line, and inside transformers."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.prompt_parts import random_parts
from tests.tiny import save_tiny_llama
from transformers import AutoModelForCausalLM

import paceline
from paceline.cli import main
from paceline.errors import ModelError
from paceline.models import load_causal_lm
from paceline.models.fingerprint import loaded_fingerprint


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and prompt tokens of it."""
    folder = tmp_path_factory.mktemp("ppd")
    model = save_tiny_llama(folder / "model")
    mark = load_causal_lm(str(model)).fingerprint
    random_parts(2, 2, vocab=257, fingerprint=mark).save_pretrained(folder / "parts")
    return model, folder / "parts"


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_methods_are_compared_with_it(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, parts = places
    methods = f"plain,ppd:parts={parts},size=20"
    words = [
        "compare",
        "abcabc",
        "-m",
        model,
        "--methods",
        methods,
        "--json",
        tmp_path / "out.json",
    ]
    assert run(monkeypatch, *words, "-n", 12, "--repeats", 1, "--weights", "native") == 0
    plain, ppd = json.loads((tmp_path / "out.json").read_text())["methods"]
    assert ppd["method"] == f"ppd:parts={parts},size=20" and ppd["identical"]
    assert plain["tokens"] == ppd["tokens"] == 12


def test_lossy_texts_are_marked(
    places: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    model, parts = places
    words = ["generate", "abc", "-m", model, "--method", f"ppd:parts={parts}", "-n", 8]
    for more, lossless in (([], True), (["--typical", "--temperature", 1], False)):
        assert run(monkeypatch, *words, *more, "--json", tmp_path / "out.json") == 0
        (record,) = json.loads((tmp_path / "out.json").read_text())
        assert record["lossless"] is lossless
        assert ("lossy: typical acceptance" in capsys.readouterr().err) is not lossless


def test_a_folder_with_an_aliass_name_is_not_the_alias(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = places
    shutil.copytree(folder, tmp_path / "smollm2-135m")
    monkeypatch.chdir(tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained("smollm2-135m")
    assert loaded_fingerprint(model) == load_causal_lm(str(folder)).fingerprint


def test_a_loaded_model_finds_its_prompt_tokens(places: tuple[Path, Path]) -> None:
    folder, parts = places
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded_fingerprint(model) == load_causal_lm(str(folder)).fingerprint
    ids = torch.tensor([[5, 6, 7, 5, 6]])
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)
    fast = paceline.accelerate(model, "ppd", parts=str(parts), size=9, budget=64)
    for _ in range(2):
        assert torch.equal(fast.generate(ids, max_new_tokens=12, do_sample=False), expected)
    assert fast.stats[0].drafted > 0
    both = ids.repeat(2, 1)
    assert torch.equal(
        fast.generate(both, max_new_tokens=12, do_sample=False), expected.repeat(2, 1)
    )


def test_a_model_of_unknown_weights_is_refused(places: tuple[Path, Path]) -> None:
    folder, parts = places
    model = type(AutoModelForCausalLM.from_pretrained(folder))
    made = model(AutoModelForCausalLM.from_pretrained(folder).config).eval()
    made.config._name_or_path = ""
    made.name_or_path = ""
    assert loaded_fingerprint(made) == ""
    pace = paceline.Pace("ppd", parts=str(parts))
    with pytest.raises(ModelError, match=r"not for this model \(unknown weights"):
        made.generate(torch.tensor([[5, 6]]), max_new_tokens=3, custom_generate=pace)


def test_a_session_has_a_host_for_its_method(places: tuple[Path, Path]) -> None:
    folder, parts = places
    session = paceline.load(str(folder), "ppd", parts=str(parts), size=20)
    plain = paceline.load(str(folder), "plain").generate("abcd", max_new_tokens=20)
    texts = [each.tokens for each in session.generate_batch(["abcd", "abcd"], max_new_tokens=20)]
    assert texts == [plain.tokens] * 2
    assert session.generate("abcd", max_new_tokens=20).tokens == plain.tokens
