"""Trainings on unusual data, and with unusual settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import new_model
from tests.training.methods_training import VOCAB, train
from tests.training.shared import make, make_data, prompt_file

from paceline.errors import ModelError, UsageError
from paceline.training.folder import check_same_run
from paceline.training.methods.chimera import ChimeraSettings
from paceline.training.methods.eagle import EagleSettings
from paceline.training.methods.medusa import MedusaSettings
from paceline.training.order import read_prompt_files
from paceline.training.precision import products_in, usable_precision
from paceline.training.settings import TrainerSettings
from paceline.training.state_cache import StateCache
from paceline.training.trainer import Trainer, one_ahead


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("answers"))


@pytest.mark.parametrize(
    ("method", "settings"),
    [("chimera", {}), ("eagle", {"state_weight": 1.0}), ("medusa", {})],
)
def test_answers_may_be_shorter_than_a_draft(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """As in data of questions that are answered by yes or no: no place has a third head's state."""
    make(tmp_path / "data", prompt_file(tmp_path, 24), max_new_tokens=2)
    parts = train(tmp_path / "data", tmp_path / "out", method, tmp_path / "c", heads=3, **settings)
    curve = parts.record["loss_curve"]
    assert all(isfinite(entry[name]) for entry in curve for name in ("loss", "held_back_loss"))
    assert curve[-1]["held_back_loss"] < curve[0]["loss"]


def test_a_training_whose_loss_is_no_number_stops(data: Path, tmp_path: Path) -> None:
    """Or it would end as if nothing had happened, with the parts it began with."""
    out, far = tmp_path / "out", {"learning_rate": 1e30, "checkpoint_every": 1}
    for _ in range(2):  # from the beginning, and from the latest checkpoint
        with pytest.raises(UsageError, match=r"loss of step \d+ is nan: .* smaller learning rate"):
            train(data, out, "eagle", tmp_path / "c", **far)
        assert not (out / "config.json").exists()


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        ((StateCache, "fill"), torch.OutOfMemoryError(), "to read the texts: use a smaller model"),
        (
            (Trainer, "__init__"),
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 TB"),
            "to learn: use a smaller model",
        ),
        ((Trainer, "learn"), MemoryError(), "to learn: train with fewer --rows, in another folder"),
    ],
)
def test_full_memory_is_one_sentence(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[type, str],
    error: Exception,
    words: str,
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(*place, full)
    with pytest.raises(UsageError, match=f"there is not enough memory {words}"):
        train(data, tmp_path / "out", "medusa", tmp_path / "c")


def test_layers_that_the_model_lacks_are_refused_before_it_reads(
    data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="the model has the layers 0 to 2, got 0, 3"):
        train(data, tmp_path / "out", "draft", tmp_path / "states", layers="0,3")
    assert not (tmp_path / "states").exists()


@pytest.mark.parametrize("method", ["eagle", "chimera"])
@pytest.mark.parametrize("name", ["gpt2", "phi3", "qwen3_moe"])
def test_a_layer_that_cannot_be_copied_is_told_before_texts_are_read(
    data: Path, tmp_path: Path, method: str, name: str
) -> None:
    """Reading takes an hour, and EAGLE's block is a copy unless told otherwise."""
    model, states = new_model(name, vocab_size=VOCAB), tmp_path / "states"
    with pytest.raises(ModelError, match=r"cannot be copied into .*: train with --block random"):
        train(data, tmp_path / "out", method, states, model=model, block="last-layer")
    assert not states.exists()


@pytest.mark.parametrize(
    ("method", "model", "changed", "words"),
    [
        ("eagle", "llama", {"intermediate": 4096}, "units to copy, not 4096"),
        ("chimera", "llama", {"intermediate": 4096, "block": "last-layer"}, "units to copy"),
        ("draft", "gpt2", {"layers": "0,2", "rank": 4}, "no linear layers"),
    ],
)
def test_sizes_that_do_not_fit_the_model_are_told_before_texts_are_read(
    data: Path, tmp_path: Path, method: str, model: str, changed: dict[str, Any], words: str
) -> None:
    states, base = tmp_path / "states", new_model(model, vocab_size=VOCAB)
    with pytest.raises(UsageError, match=words):
        train(data, tmp_path / "out", method, states, model=base, **changed)
    assert not states.exists()


@pytest.mark.parametrize(
    ("method", "before", "changed", "words"),
    [
        ("draft", {"layers": "0,2"}, {"layers": "0,1"}, "train with --layers 0,2 --rank 0"),
        ("eagle", {}, {"intermediate": 16}, "wide, not 16: train with --intermediate"),
        ("chimera", {}, {"intermediate": 16}, "wide, not 16: train with --intermediate"),
    ],
)
def test_parts_to_start_from_that_have_other_sizes_are_told_before_texts_are_read(
    data: Path,
    tmp_path: Path,
    method: str,
    before: dict[str, Any],
    changed: dict[str, Any],
    words: str,
) -> None:
    first, states = tmp_path / "first", tmp_path / "states"
    train(data, first, method, tmp_path / "read", **before)
    with pytest.raises(UsageError, match=words):
        train(data, tmp_path / "out", method, states, start=str(first), **changed)
    assert not states.exists()


def test_texts_longer_than_the_models_context_are_cut(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    lines = [json.dumps({"id": f"long/{i}", "prompt": "abc " * 200}) for i in range(9)]
    path.write_text("\n".join(lines), encoding="utf-8")
    files = tuple(read_prompt_files([path]))
    for name, limit in (("llama", "max_position_embeddings"), ("gpt2", "n_positions")):
        model = new_model(name, vocab_size=VOCAB, **{limit: 60})
        parts = train(data, tmp_path / name, "medusa", tmp_path / f"c-{name}", files, model=model)
        assert parts.record["texts"]["reads"]["texts"] > 0


def test_tokens_that_the_model_lacks_are_told_before_texts_are_read(
    data: Path, tmp_path: Path
) -> None:
    """A tokenizer may have more: these are bytes, and the model knows those of ASCII."""
    files = tuple(read_prompt_files([prompt_file(tmp_path, 9, turns=["Straße " * 3])]))
    small = new_model("llama", vocab_size=VOCAB - 10)
    with pytest.raises(UsageError, match=r"holds token \d+ but .* ends at 247: leave it out"):
        train(data, tmp_path / "out", "medusa", tmp_path / "c", files, model=small)
    assert not (tmp_path / "c").exists()


def test_seeds_are_those_of_torch() -> None:
    torch.Generator().manual_seed(TrainerSettings(seed=2**64 - 1).seed)
    for seed in (-1, 2**64):
        with pytest.raises(UsageError, match="seed must be at"):
            TrainerSettings(seed=seed)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("ppd", {"exits": 4}, "the model has 3 layers: exits must be at most 3"),
        ("medusa", {"vocabulary": 999}, "a vocabulary of 999 cannot be made"),
        ("medusa", {"rows": 2}, "a share of 0.25 for texts that are only read is none: increase"),
    ],
)
def test_what_cannot_work_is_told_before_texts_are_read(
    data: Path, tmp_path: Path, method: str, changes: dict[str, Any], message: str
) -> None:
    files = tuple(read_prompt_files([prompt_file(tmp_path, 9)]))
    with pytest.raises(UsageError, match=message):
        train(data, tmp_path / "out", method, tmp_path / "c", files, **changes)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "settings",
    [
        (MedusaSettings, {"layers": 2}),
        (MedusaSettings, {"form": "full"}),
        (ChimeraSettings, {"layers": 1}),
        (ChimeraSettings, {"bottom": "transformer frozen"}),
        (EagleSettings, {"bits": 5}),
    ],
    ids=str,
)
def test_bits_are_those_of_drafts(settings: tuple[Any, dict[str, Any]]) -> None:
    kind, given = settings
    with pytest.raises(UsageError, match="bits"):
        kind(**{"bits": 4, **given})
    assert "bits" not in kind().as_json() and kind(bits=8).as_json()["bits"] == 8


def test_products_stay_exact_where_torch_has_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch before 2.9, and on devices other than processors and CUDA."""
    monkeypatch.delattr(type(torch.backends.mkldnn), "matmul", raising=False)
    for device in (torch.device("cpu"), torch.device("mps")):
        assert usable_precision("auto", device) == "float32"
        with products_in("float32", device):
            pass
        with pytest.raises(UsageError, match="leave --precision at auto"):
            usable_precision("bfloat16", device)


def test_batches_made_ahead_keep_their_order_and_errors() -> None:
    def made() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    ahead = one_ahead(made())
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)


def test_what_differs_is_named_even_if_one_side_has_none() -> None:
    with pytest.raises(UsageError, match="another turns in its run"):
        check_same_run(Path("x"), {"run": {}}, {"run": {"turns": None}}, "data made")
