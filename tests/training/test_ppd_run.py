"""A training from data to a folder: what it leaves, and that nothing stops it for good."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tests.training.killing import killed_at
from tests.training.trained import RECIPE, make_data, train

from paceline.drafters.prompt_tokens import PromptConfig, PromptTokens
from paceline.errors import ModelError, UsageError
from paceline.training import run as training_run
from paceline.training.checkpoint import save_checkpoint

PARTS = {"config.json", "model.safetensors", "acceptance.json", "training.json"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(data, out)
    return out


def lasting(folder: Path) -> dict[str, object]:
    """What must be the same, whatever happened on the way: not the time it took."""
    record = json.loads((folder / "training.json").read_text())
    del record["seconds"], record["speed"]
    files = {name: (folder / name).read_bytes() for name in PARTS - {"training.json"}}
    return {**files, "record": record}


def test_it_leaves_parts_that_say_how_they_came_about(whole: Path, data: Path) -> None:
    assert {path.name for path in whole.iterdir()} == PARTS | {".lock"}
    parts = PromptTokens.from_pretrained(whole)
    assert parts.embeddings.shape == (2, 1, 32)
    assert parts.acceptance is not None and parts.acceptance.distances == 2
    record = parts.record
    assert record["steps"] == RECIPE["steps"]
    assert [entry["step"] for entry in record["loss_curve"]] == [4, 8, 12]
    assert record["loss_curve"][-1]["held_back_loss"] < record["loss_curve"][0]["loss"]
    assert record["evaluation"]["points"] > 0
    assert record["licences"] == {"unknown": 24}
    assert record["run"]["data"]["run"]["model"] == parts.base.fingerprint


def test_the_same_again_is_the_same(data: Path, whole: Path, tmp_path: Path) -> None:
    train(data, tmp_path)
    assert lasting(tmp_path) == lasting(whole)


def test_a_checkpoint_is_gone_on_with(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after every checkpoint in turn, also between its two files."""
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
        (tmp_path / "checkpoint-999999.safetensors").write_bytes(b"half of the next one")
    train(data, tmp_path)
    assert saves == 6
    assert lasting(tmp_path) == lasting(whole)
    assert {path.name for path in tmp_path.iterdir()} == PARTS | {".lock"}


def test_killed_at_random_moments(data: Path, whole: Path, tmp_path: Path) -> None:
    """Behind the first checkpoint of a process, twice."""
    chance, out = random.Random(7), tmp_path / "killed"
    moments = [chance.randint(650, 1000) for _ in range(2)]
    assert killed_at(moments, train, data, out) == 2
    assert lasting(out) == lasting(whole)


def stopped(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the tensors of a training that was stopped."""

    def save_and_stop(*arguments: object) -> None:
        save_checkpoint(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training_run, "save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(data, out)
    return next(out.glob("checkpoint-*"))


def test_a_damaged_checkpoint_is_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = stopped(data, tmp_path, monkeypatch)
    content = bytearray(tensors.read_bytes())
    content[-3] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(UsageError, match=rf"{tensors.name} is damaged .*delete .*checkpoint.json"):
        train(data, tmp_path)
    tensors.unlink()
    with pytest.raises(UsageError, match=rf"{tensors.name} is missing"):
        train(data, tmp_path)
    index = tmp_path / "checkpoint.json"
    changed = json.loads(index.read_text())
    changed["numbers"]["stale"] = 3
    index.write_text(json.dumps(changed))
    with pytest.raises(UsageError, match=r"checkpoint.json is damaged .*sha256"):
        train(data, tmp_path)
    index.write_text(index.read_text()[:-20])
    with pytest.raises(UsageError, match=r"checkpoint.json is damaged"):
        train(data, tmp_path)
    index.unlink()
    train(data, tmp_path)


def test_another_training_does_not_go_on_with_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(data, tmp_path, monkeypatch)
    with pytest.raises(UsageError, match=r"holds a checkpoint of a training with another recipe"):
        train(data, tmp_path, decay=0.5)
    with pytest.raises(UsageError, match=r"another config"):
        train(data, tmp_path, PromptConfig(prompt_tokens=3))


def test_a_finished_folder_is_handed_back_and_never_overwritten(
    data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lasting(whole)
    monkeypatch.setattr(training_run, "Learner", None)  # nothing may be trained
    again = train(data, whole)
    assert torch.equal(again.embeddings, PromptTokens.from_pretrained(whole).embeddings)
    with pytest.raises(UsageError, match=r"holds prompt tokens trained with another recipe"):
        train(data, whole, decay=0.5)
    assert lasting(whole) == before


def test_a_start_of_another_shape_is_refused(data: Path, whole: Path, tmp_path: Path) -> None:
    start = PromptTokens.from_pretrained(whole)
    for config in (PromptConfig(prompt_tokens=3), PromptConfig(prompt_tokens=2, epts=3)):
        with pytest.raises(UsageError, match=r"embeddings to begin with are \(2, 1, 32\)"):
            train(data, tmp_path, config, start)


def test_data_of_another_model_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"made by the model toy-0123, not by other"):
        train(data, tmp_path, fingerprint="other")


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    shard = next(data.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(UsageError, match=rf"{shard.name} is damaged"):
        train(data, tmp_path / "out")


def test_a_second_stage_begins_where_the_first_ended(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    first = PromptTokens.from_pretrained(whole)
    config = PromptConfig(prompt_tokens=2, head="small")
    parts = train(data, tmp_path, config, first, steps=1, learning_rate=1e-4)
    assert set(parts.tensors) == {"embeddings", "head.weight", "head.bias"}
    torch.testing.assert_close(parts.embeddings, first.embeddings, atol=2e-4, rtol=0)
    assert parts.record["run"]["start"] == first.record["run"]


def test_folders_that_hold_no_parts_are_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*config.json"):
        PromptTokens.from_pretrained(tmp_path)
    for name in PARTS - {"acceptance.json"}:
        folder = tmp_path / name
        folder.mkdir()
        for path in whole.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / name).write_bytes(b"[1, 2")
        with pytest.raises(ModelError, match=name.replace(".", r"\.")):
            PromptTokens.from_pretrained(folder)


def test_parts_of_another_model_are_refused(whole: Path) -> None:
    parts = PromptTokens.from_pretrained(whole)
    parts.check_base(parts.base.fingerprint)
    with pytest.raises(ModelError, match=r"trained for toy .* not for the model at hand \(other\)"):
        parts.check_base("other")
