"""Trainings of heads from data to a folder: what they leave, and that nothing stops them for good."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from paceline.training.heads.run import HeadRun
from tests.tiny_models import new_model
from tests.training.head_training import CHIMERA, MEDUSA, RECIPE, VOCAB, train
from tests.training.killing import killed_at
from tests.training.shared import MODEL
from tests.training.trained import make_data

from paceline.drafters.trained_heads import ChimeraConfig, ChimeraParts, MedusaConfig, MedusaParts
from paceline.errors import ModelError, UsageError
from paceline.training import run as training_run
from paceline.training.checkpoint import save_checkpoint

PARTS = {"config.json", "model.safetensors", "acceptance.json", "training.json"}
CONFIGS = [MEDUSA, CHIMERA]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training of Chimera that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(data, out)
    return out


def lasting(folder: Path) -> dict[str, object]:
    """What must be the same, whatever happened on the way: not the time it took."""
    record = json.loads((folder / "training.json").read_text())
    del record["seconds"]
    files = {name: (folder / name).read_bytes() for name in PARTS - {"training.json"}}
    return {**files, "record": record}


@pytest.mark.parametrize("config", CONFIGS, ids=["medusa", "chimera"])
def test_it_leaves_parts_that_say_how_they_came_about(
    data: Path, tmp_path: Path, config: MedusaConfig | ChimeraConfig
) -> None:
    model = new_model("llama", vocab_size=VOCAB)
    before = {name: part.clone() for name, part in model.state_dict().items()}
    train(data, tmp_path, config, model=model)
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    assert {path.name for path in tmp_path.iterdir()} == PARTS | {".lock"}
    kind = MedusaParts if config == MEDUSA else ChimeraParts
    parts = kind.from_pretrained(tmp_path)
    kinds = {name: part.dtype for name, part in parts.tensors.items()}
    assert kinds.pop("token_ids", torch.int64) == torch.int64
    assert kinds.pop("common_ngrams", torch.int32) == torch.int32
    assert set(kinds.values()) == {torch.float16}
    assert parts.acceptance is not None
    assert (parts.acceptance.distances, parts.acceptance.ranks) == (2, 10)
    record = parts.record
    assert record["steps"] == RECIPE["steps"] and record["licences"] == {"unknown": 24}
    assert [entry["step"] for entry in record["loss_curve"]] == [4, 8, 12]
    assert record["loss_curve"][-1]["held_back_loss"] < record["loss_curve"][0]["loss"]
    assert record["run"]["data"]["run"]["model"] == parts.base.fingerprint
    found = record["evaluation"]
    assert found["points"] > 0 and len(found["top1"]) == len(found["top5"]) == 2
    assert ("own_guesses" in found) == (config == CHIMERA)
    if config == CHIMERA:
        # The first head guesses behind the same token either way.
        assert found["own_guesses"]["top1"][0] == found["top1"][0]
        assert parts.token_ids is not None and len(parts.token_ids) == 40
    shares = [round(sum(row[:3]), 4) for row in parts.acceptance.rows]
    assert shares == pytest.approx(found["top3"], abs=1e-4)


def test_the_same_again_is_the_same_with_and_without_a_cache(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    for place in ("first", "second"):
        train(data, tmp_path / place, cache=tmp_path / "cache")
        assert lasting(tmp_path / place) == lasting(whole)


def test_a_checkpoint_is_gone_on_with(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after every checkpoint in turn."""
    saves = 0

    def save_and_stop(*arguments: object) -> None:
        nonlocal saves
        saves += 1
        save_checkpoint(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(training_run, "save_checkpoint", save_and_stop)
    for _ in range(RECIPE["steps"] // RECIPE["checkpoint_every"]):
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path)
    train(data, tmp_path)
    assert saves == 6
    assert lasting(tmp_path) == lasting(whole)


def test_killed_at_random_moments(data: Path, whole: Path, tmp_path: Path) -> None:
    """Behind the first checkpoint of a process, twice."""
    chance, out = random.Random(7), tmp_path / "killed"
    moments = [chance.randint(600, 1000) for _ in range(2)]
    assert killed_at(moments, train, data, out, CHIMERA, MODEL, None, tmp_path / "cache") == 2
    assert lasting(out) == lasting(whole)


def test_another_training_does_not_go_on_with_it(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_stop(*arguments: object) -> None:
        save_checkpoint(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training_run, "save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path)
    with pytest.raises(UsageError, match=r"holds a checkpoint of a training with another recipe"):
        train(data, tmp_path, state_weight=0.5)
    with pytest.raises(UsageError, match=r"another saved \('float16', not 'float32'\)"):
        train(data, tmp_path, saved="float32")
    with pytest.raises(UsageError, match=r"holds Chimera parts trained with another config"):
        train(data, whole, replace(CHIMERA, order=2))
    with pytest.raises(ModelError, match=r"describes no Medusa heads"):
        train(data, whole, MEDUSA)
    monkeypatch.setattr(training_run, "Learner", None)  # nothing may be trained
    assert train(data, whole).config == ChimeraParts.from_pretrained(whole).config


def test_what_does_not_go_together_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"made by the model toy-0123, not by other"):
        train(data, tmp_path, fingerprint="other")
    model = new_model("llama", dtype=torch.float16, vocab_size=VOCAB)
    with pytest.raises(UsageError, match="gradients vanish in float16"):
        train(data, tmp_path, model=model)
    with pytest.raises(UsageError, match="leave own guesses out"):
        train(data, tmp_path, ChimeraConfig(bottom="transformer frozen"), own_guesses=True)
    with pytest.raises(UsageError, match="a vocabulary of 5000 cannot be made"):
        train(data, tmp_path, replace(MEDUSA, vocabulary=5000))
    with pytest.raises(UsageError, match="kept in one of float16, bfloat16, float32, got 'int8'"):
        HeadRun(MEDUSA, None, None, "int8")  # type: ignore[arg-type]


@pytest.mark.parametrize("bottom", ["transformer frozen", "transformer finetune"])
def test_a_transformer_at_the_bottom_is_for_the_study(
    data: Path, tmp_path: Path, bottom: str
) -> None:
    config = ChimeraConfig(heads=2, bottom=bottom)  # type: ignore[arg-type]
    train(data, tmp_path, config, steps=2)
    parts = ChimeraParts.from_pretrained(tmp_path)
    trained = any(name.startswith("bottom.") for name in parts.tensors)
    assert trained == (bottom == "transformer finetune")
    assert "own_guesses" not in parts.record["evaluation"]
    with pytest.raises(ModelError, match="for the study only"):
        parts.check_usable()


def test_weights_are_kept_as_asked(data: Path, tmp_path: Path) -> None:
    for saved in ("float32", "bfloat16"):
        parts = train(data, tmp_path / saved, MEDUSA, saved=saved, steps=1)
        assert {part.dtype for part in parts.tensors.values()} == {getattr(torch, saved)}
    huge = train(data, tmp_path / "huge", MEDUSA, steps=1, learning_rate=1e6)
    assert {part.dtype for part in huge.tensors.values()} == {torch.bfloat16}
