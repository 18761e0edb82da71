"""Starts from what was kept of the last one."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from tests.c_library import needs_library
from tests.models.gguf_files import save_gguf

import paceline
from paceline.errors import ModelError
from paceline.models import load_causal_lm
from paceline.opening import kept_targets, prepared_models
from paceline.session import Session

pytestmark = needs_library  # without it, nothing is kept

PROMPT = "ABCABCABDE"
OPTIONS: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True, "budget": 6}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models that are opened, by name."""
    names = []

    def load(name: str, **options: Any) -> Any:
        names.append(name)
        return load_causal_lm(name, **options)

    monkeypatch.setattr(prepared_models, "load_causal_lm", load)
    return names


def start(file: Path, method: str = "anpd", **options: Any) -> Session:
    return paceline.load(str(file), method, device="cpu", measure=False, **options)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_the_next_start_opens_no_model_and_says_the_same(
    root: Path, opened: list[str], tmp_path: Path, family: str
) -> None:
    file = save_gguf(tmp_path / "m.gguf", family, ("Q4_K", "Q8_0"))
    first = start(file)
    assert (len(opened), len([*root.glob("*/hashes.json")])) == (1, 1)
    second = start(file)
    for temperature in (0.0, 0.8):
        texts = [
            each.generate(PROMPT, **OPTIONS, temperature=temperature, seed=3).tokens
            for each in (first, second)
        ]
        assert texts[0] == texts[1]
    assert len(opened) == 1
    assert first.target.describe() == second.target.describe()
    assert (first.eos_ids, first.fingerprint) == (second.eos_ids, second.fingerprint)
    assert first.target.max_context == second.target.max_context


def test_a_file_that_was_replaced_while_it_was_opened_is_not_kept(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = save_gguf(tmp_path / "m.gguf"), save_gguf(tmp_path / "o.gguf", seed=1)

    def load(name: str, **options: Any) -> Any:
        other.replace(file)
        return load_causal_lm(name, **options)

    monkeypatch.setattr(prepared_models, "load_causal_lm", load)
    start(file)
    assert not [*root.glob("*/hashes.json")]


def test_a_name_may_begin_like_a_home_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_gguf(tmp_path / "~m.gguf")
    monkeypatch.chdir(tmp_path)
    texts = [start(Path("~m.gguf")).generate(PROMPT, **OPTIONS).tokens for _ in range(2)]
    assert texts[0] == texts[1]


def test_the_model_is_opened_where_somebody_asks_for_it(
    root: Path, opened: list[str], tmp_path: Path
) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    first, second = start(file), start(file)
    expected = first.generate(PROMPT, **OPTIONS).tokens
    assert second.generate(PROMPT, **OPTIONS).tokens == expected
    target: Any = second.target
    assert type(target.model) is type(first.target.model)  # type: ignore[attr-defined]
    assert len(opened) == 2
    assert second.generate(PROMPT, **OPTIONS).tokens == expected
    assert len(opened) == 2
    assert second.target.describe().report["own_forward"] == ""


def test_a_model_opened_under_autocast_goes_on_with_what_was_kept(
    root: Path, tmp_path: Path
) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    expected = start(file).generate(PROMPT, **OPTIONS).tokens
    second = start(file)
    with torch.autocast("cpu", torch.bfloat16):
        assert second.target.model is not None  # type: ignore[attr-defined]
    assert second.generate(PROMPT, **OPTIONS).tokens == expected


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_what_was_kept_knows_tokens_as_numbers(
    root: Path, opened: list[str], tmp_path: Path, family: str, tied: bool
) -> None:
    """Where embeddings are scaled, the model is asked; the factor is known with them."""
    file = save_gguf(tmp_path / "m.gguf", family, own_head=not tied)
    first, second = start(file).target, start(file).target
    assert len(opened) == 1
    ids = torch.tensor([[3, 5], [0, 9]])
    assert torch.equal(first.embed(ids), second.embed(ids))
    tables = [first.word_table(), second.word_table()]
    assert [table and table.scale for table in tables] == 2 * [16.0 if family == "gemma3" else 1.0]
    assert len(opened) == (2 if family == "gemma3" else 1)
    for some in (None, torch.tensor([3, 7])):
        for one, other in zip(first.output_head(some), second.output_head(some), strict=True):
            assert torch.equal(one, other)
    assert len(opened) == (2 if family == "gemma3" else 1)


def test_a_draft_model_is_opened_together_with_its_base(root: Path, tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    expected = start(file).generate(PROMPT, **OPTIONS).tokens
    drafted = start(file, "speculative", draft=str(file)).generate(PROMPT, **OPTIONS)
    assert drafted.tokens == expected
    assert drafted.stats.accepted


def test_another_file_in_the_same_place_is_another_model(
    root: Path, opened: list[str], tmp_path: Path
) -> None:
    file = save_gguf(tmp_path / "m.gguf", seed=1)
    before = start(file).generate(PROMPT, **OPTIONS).tokens
    save_gguf(file, seed=2)
    after = start(file).generate(PROMPT, **OPTIONS).tokens
    assert len(opened) == 2
    assert after == start(file).generate(PROMPT, **OPTIONS).tokens != before
    assert len(opened) == 2


def test_a_file_that_cannot_be_read_is_one_sentence(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: object) -> str:
        raise PermissionError(13, "Permission denied")

    file = save_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr(prepared_models, "fingerprint", refused)
    with pytest.raises(ModelError, match=r"m\.gguf"):
        start(file)


@pytest.mark.parametrize("content", ["{}", '{"facts": {}}', "[1]"])
def test_a_record_that_makes_no_sense_is_made_again(
    root: Path,
    opened: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    expected = start(file).generate(PROMPT, **OPTIONS).tokens
    found = {"{}": {}, '{"facts": {}}': {"facts": {}}, "[1]": {"facts": [1]}}[content]
    found |= {"lent": {}}
    with monkeypatch.context() as patch:
        patch.setattr(kept_targets, "find_prepared", lambda mark: (found, {}))
        assert start(file).generate(PROMPT, **OPTIONS).tokens == expected
    assert len(opened) == 2
    assert start(file).generate(PROMPT, **OPTIONS).tokens == expected
    assert len(opened) == 2


@pytest.mark.parametrize(
    "options", [{"weights": "packed"}, {"engine": "transformers"}, {"dtype": "bfloat16"}]
)
def test_models_that_are_wanted_otherwise_are_not_kept(
    root: Path, tmp_path: Path, options: dict[str, str]
) -> None:
    start(save_gguf(tmp_path / "m.gguf"), **options)
    assert not root.exists()


def test_a_cache_that_cannot_be_written_changes_nothing(root: Path, tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    expected = start(file).generate(PROMPT, **OPTIONS).tokens
    for path in root.glob("*/*"):
        path.unlink()
    os.makedirs(root, exist_ok=True)
    lock = root / ".lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    assert start(file).generate(PROMPT, **OPTIONS).tokens == expected


def test_a_model_that_is_opened_late_is_the_one_that_was_started(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = save_gguf(Path("m.gguf"), "llama", ("Q4_K", "Q8_0"))
    start(file)
    elsewhere, replaced = start(file), start(file)
    monkeypatch.chdir("/")
    assert elsewhere.target.model is not None
    save_gguf(tmp_path / "new.gguf", "llama", ("Q4_K", "Q8_0"), seed=1).replace(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf was replaced meanwhile: open it again"):
        _ = replaced.target.model


@pytest.mark.parametrize("asked", [False, True])
def test_what_was_kept_is_free_with_its_session(root: Path, tmp_path: Path, asked: bool) -> None:
    """Without waiting for a collection of garbage: models are large."""
    file = save_gguf(tmp_path / "m.gguf")
    start(file)
    session = start(file)
    session.generate(PROMPT, **OPTIONS)
    if asked:
        assert session.target.model  # type: ignore[attr-defined]
    gone = ref(session.target)
    gc.collect()
    gc.disable()
    try:
        del session
        assert gone() is None
    finally:
        gc.enable()
