"""Trainings of methods from data to a folder: what they leave, and that nothing stops them for good."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import new_model
from tests.training.killing import killed_at
from tests.training.methods_training import SETTINGS, VOCAB, train
from tests.training.shared import make_data, prompt_file

from paceline.drafters.eight_bits import in_floats
from paceline.drafters.trained_heads import ChimeraParts, MedusaParts
from paceline.errors import ModelError, UsageError
from paceline.training import method_run
from paceline.training import trainer as trainer_module
from paceline.training.checkpoint import save_checkpoint
from paceline.training.data import TrainingData
from paceline.training.dataset import Dataset, TextSource, share_of
from paceline.training.method import method_of
from paceline.training.methods import TRAINED
from paceline.training.order import read_prompt_files
from paceline.training.settings import TrainerSettings
from paceline.training.trainer import Trainer

PARTS = {"config.json", "model.safetensors", "acceptance.json", "training.json"}
KINDS = {"medusa": MedusaParts, "chimera": ChimeraParts}


@pytest.fixture(scope="module")
def whole(data: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training of Chimera that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(data, out, "chimera", cache)
    return out


def lasting(folder: Path) -> dict[str, object]:
    """What must be the same, whatever happened on the way: not the time it took."""
    record = json.loads((folder / "training.json").read_text())
    del record["seconds"], record["speed"]
    files = {name: (folder / name).read_bytes() for name in PARTS - {"training.json"}}
    return {**files, "record": record}


@pytest.mark.parametrize("method", KINDS)
def test_it_leaves_parts_that_say_how_they_came_about(
    data: Path, cache: Path, tmp_path: Path, method: str
) -> None:
    model = new_model("llama", vocab_size=VOCAB)
    before = {name: part.clone() for name, part in model.state_dict().items()}
    train(data, tmp_path, method, cache, model=model)
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    assert {path.name for path in tmp_path.iterdir()} == PARTS | {".lock"}
    parts = KINDS[method].from_pretrained(tmp_path)
    kinds = {name: part.dtype for name, part in parts.tensors.items()}
    assert kinds.pop("token_ids") == torch.int64
    assert kinds.pop("common_ngrams", torch.int32) == torch.int32
    assert set(kinds.values()) == {torch.float16}
    assert parts.acceptance is not None
    assert (parts.acceptance.distances, parts.acceptance.ranks) == (2, 10)
    record = parts.record
    assert record["steps"] == SETTINGS["steps"] and record["licences"] == {"unknown": 24}
    assert [entry["step"] for entry in record["loss_curve"]] == [4, 8, 12]
    assert record["loss_curve"][-1]["held_back_loss"] < record["loss_curve"][0]["loss"]
    assert len(record["loss_curve"][0]["top1"]) == 2
    assert record["run"]["data"][0]["run"]["model"] == parts.base.fingerprint
    texts = record["texts"]
    assert sum(texts[name]["texts"] for name in ("train", "validation", "test")) == 24
    assert record["places"] > 0 and record["speed"]["places_per_second"] > 0
    assert ("evaluation_after_own_guesses" in record) == (method == "chimera")
    found = record["evaluation"]
    assert found["points"] == texts["test"]["places"] and found["texts"] == texts["test"]["texts"]
    for share, (low, high) in zip(found["top1"], found["top1_interval"]):
        assert low <= share <= high
    shares = [round(sum(row[:3]), 4) for row in parts.acceptance.rows]
    assert shares == pytest.approx(found["top3"], abs=1e-4)


def test_the_same_again_is_the_same_with_states_kept_or_read(
    data: Path, cache: Path, whole: Path, tmp_path: Path
) -> None:
    for place, states in (("first", cache), ("second", tmp_path / "states")):
        train(data, tmp_path / place, "chimera", states)
        assert lasting(tmp_path / place) == lasting(whole)


def test_a_checkpoint_is_gone_on_with(
    data: Path, cache: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after every checkpoint in turn."""
    saves = 0

    def save_and_stop(*arguments: object) -> None:
        nonlocal saves
        saves += 1
        save_checkpoint(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, "save_checkpoint", save_and_stop)
    for _ in range(SETTINGS["steps"] // SETTINGS["checkpoint_every"]):
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path, "chimera", cache)
    train(data, tmp_path, "chimera", cache)
    assert saves == 6
    assert lasting(tmp_path) == lasting(whole)


def test_killed_at_random_moments(data: Path, whole: Path, tmp_path: Path) -> None:
    """While the target reads, and between steps, after a checkpoint."""
    chance, out = random.Random(7), tmp_path / "killed"
    moments = [chance.randint(20, 200), chance.randint(2000, 2600)]
    assert killed_at(moments, train, data, out, "chimera", tmp_path / "cache") == 2
    assert lasting(out) == lasting(whole)


def test_another_training_does_not_go_on_with_it(
    data: Path, cache: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_stop(*arguments: object) -> None:
        save_checkpoint(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path, "chimera", cache)
    with pytest.raises(
        UsageError, match=r"with another state_weight in its settings \(1.0, not 0.5\)"
    ):
        train(data, tmp_path, "chimera", tmp_path / "states", state_weight=0.5)
    assert not (tmp_path / "states").exists()  # nothing may be read in vain
    with pytest.raises(UsageError, match=r"Chimera parts trained with another order in its"):
        train(data, whole, "chimera", cache, order=2)
    with pytest.raises(ModelError, match=r"does not describe Medusa heads"):
        train(data, whole, "medusa", cache)
    monkeypatch.setattr(method_run, "Trainer", None)  # nothing may be trained
    assert train(data, whole, "chimera", cache).config.order == 3


def test_a_damaged_checkpoint_is_named(
    data: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_stop(*arguments: object) -> None:
        save_checkpoint(*arguments)  # type: ignore[arg-type]
        (tmp_path / "checkpoint-999999.safetensors").write_bytes(b"half of the next one")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(data, tmp_path, "medusa", cache)
    tensors = tmp_path / "checkpoint-000002.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-3] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(UsageError, match=rf"{tensors.name} is damaged .*delete .*checkpoint.json"):
        train(data, tmp_path, "medusa", cache)
    tensors.unlink()
    with pytest.raises(UsageError, match=rf"{tensors.name} is missing"):
        train(data, tmp_path, "medusa", cache)
    index = tmp_path / "checkpoint.json"
    changed = json.loads(index.read_text())
    changed["numbers"]["stale"] = 3
    index.write_text(json.dumps(changed))
    with pytest.raises(UsageError, match=r"checkpoint.json is damaged .*sha256"):
        train(data, tmp_path, "medusa", cache)
    index.write_text(index.read_text()[:-20])
    with pytest.raises(UsageError, match=r"checkpoint.json is damaged"):
        train(data, tmp_path, "medusa", cache)
    index.unlink()
    train(data, tmp_path, "medusa", cache)
    assert {path.name for path in tmp_path.iterdir()} == PARTS | {".lock"}


def test_a_damaged_shard_is_named(cache: Path, tmp_path: Path) -> None:
    data = make_data(tmp_path)
    shard = next(data.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(UsageError, match=rf"{shard.name} is damaged"):
        train(data, tmp_path / "out", "medusa", cache)


def test_what_does_not_go_together_is_refused(data: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"made by the model toy-0123, not by other"):
        train(data, tmp_path, "medusa", cache, fingerprint="other")
    model = new_model("llama", dtype=torch.float16, vocab_size=VOCAB)
    with pytest.raises(UsageError, match="gradients vanish in float16"):
        train(data, tmp_path, "medusa", cache, model=model)
    with pytest.raises(UsageError, match="a vocabulary of 5000 cannot be made"):
        train(data, tmp_path, "medusa", cache, vocabulary=5000)
    with pytest.raises(UsageError, match="no answer falls into the test split"):
        train(data, tmp_path, "medusa", cache, test=1e-9)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("medusa", {"form": "full", "layers": 2, "loss": "blend"}),
    ("medusa", {"loss": "labels", "precision": "float32", "weight_decay": 0.1}),
    ("chimera", {"block": "last-layer", "final_norm": True, "schedule": "cosine"}),
    ("chimera", {"block": "last-layer", "intermediate": 8}),
    ("chimera", {"form": "full", "residual": False, "order": 2, "vocabulary": 0}),
    ("chimera", {"own_guesses": True, "layers": 1, "state_weight": 0.0}),
    ("chimera", {"rank": 4, "vocabulary": 0}),
    ("chimera", {"bottom": "transformer frozen"}),
    ("chimera", {"bottom": "transformer finetune"}),
]


@pytest.mark.parametrize(("method", "settings"), VARIANTS, ids=str)
def test_every_variant_learns(
    data: Path, cache: Path, tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    seldom = {"steps": 12, "validate_every": 6, "checkpoint_every": 12}
    parts = train(data, tmp_path, method, cache, **seldom, **settings)
    losses = [entry["held_back_loss"] for entry in parts.record["loss_curve"]]
    assert min(losses[1:]) < losses[0]
    KINDS[method].from_pretrained(tmp_path)
    if str(settings.get("bottom", "")).startswith("transformer"):
        with pytest.raises(ModelError, match="only for the study"):
            parts.check_usable()


def test_weights_are_kept_as_asked(data: Path, cache: Path, tmp_path: Path) -> None:
    for saved in ("float32", "bfloat16"):
        parts = train(data, tmp_path / saved, "medusa", cache, save_dtype=saved, steps=1)
        kinds = {part.dtype for part in parts.tensors.values() if part.is_floating_point()}
        assert kinds == {getattr(torch, saved)}


@pytest.mark.parametrize("method", ["medusa", "chimera", "eagle"])
def test_what_is_kept_in_eight_bits_is_what_was_measured(
    data: Path, cache: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[dict[str, torch.Tensor]] = []
    measure = Trainer.measure

    def noted(self: Trainer, *arguments: Any) -> Any:
        measured.append(self.method.tensors())
        return measure(self, *arguments)

    monkeypatch.setattr(Trainer, "measure", noted)
    parts = train(data, tmp_path, method, cache, save_dtype="int8", steps=1)
    last = measured[-1]  # on the test split; the others are validations
    matrices = [name for name, part in last.items() if part.dim() > 1 and "bias" not in name]
    assert matrices and all(parts.tensors[name].dtype == torch.int8 for name in matrices)
    opened = in_floats(method_of(TRAINED[method]()).Parts.from_pretrained(tmp_path).tensors)
    for name, part in last.items():
        torch.testing.assert_close(opened[name].float(), part)


def test_splits_share_no_prompt_and_texts_are_mixed_in(
    data: Path, cache: Path, tmp_path: Path
) -> None:
    turn = "A text that is long enough to learn from. " * 2
    files = tuple(read_prompt_files([prompt_file(tmp_path, 9, "read.jsonl", turns=[turn])]))
    parts = train(data, tmp_path / "out", "medusa", cache, files, steps=2)
    assert parts.record["texts"]["reads"]["texts"] > 0
    settings = TrainerSettings(validation=0.2, test=0.2, context=12)
    found = Dataset.of(TextSource([TrainingData(data)]), settings, None)
    for name, least, most in (("test", 0, 0.2), ("validation", 0.2, 0.4), ("train", 0.4, 1)):
        assert all(least <= share_of(text.id) < most for text in getattr(found, name))


def test_every_method_says_what_its_options_mean() -> None:
    for kind in TRAINED.values():
        assert {each.name for each in fields(kind)} >= {"heads", "steps", "seed"}
        for each in fields(kind):
            assert each.metadata["help"].endswith(".") and each.metadata["panel"]
