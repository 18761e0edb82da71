"""Reading training data, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from tests.training.shared import MODEL, content, make, prompt_file

from paceline.errors import UsageError
from paceline.training import self_distillation
from paceline.training.data import Answer, TrainingData, load_manifest, pack, unpack


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data of three shards."""
    monkeypatch.setattr(self_distillation, "SHARD_PROMPTS", 4)
    make(tmp_path / "data", prompt_file(tmp_path, 11))
    return tmp_path / "data"


def flip(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (flip, "is damaged"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-3]), "is damaged"),
    "empty": (lambda path: path.write_bytes(b""), "is damaged"),
    "missing": (lambda path: path.unlink(), "cannot read the shard"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_named_and_made_again(folder: Path, damage: str) -> None:
    before, (harm, words) = content(folder), DAMAGES[damage]
    harm(folder / "shard-00001.jsonl.gz")
    data = TrainingData(folder, MODEL)
    assert len(list(islice(data, 4))) == 4  # the shard before it
    with pytest.raises(UsageError, match=words) as caught:
        list(data)
    assert "shard-00001.jsonl.gz" in str(caught.value) and "\n" not in str(caught.value)
    make(folder, folder.parent / "prompts.jsonl")
    assert content(folder) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": 9, "kind": "training data"}',
        '{"format": 1}',
        "\x00",
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_a_damaged_manifest_is_named(folder: Path, text: str) -> None:
    path = folder / "manifest.json"
    path.write_text(text, encoding="utf-8")
    for read in (TrainingData, lambda out: make(out, folder.parent / "prompts.jsonl")):
        with pytest.raises(UsageError, match="is damaged") as caught:
            read(folder)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_manifest_without_a_field_is_named(folder: Path) -> None:
    path = folder / "manifest.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["shards"][1]["sha256"]
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UsageError, match="is damaged"):
        TrainingData(folder)


def test_data_of_another_model_is_refused(folder: Path) -> None:
    for fingerprint in (None, MODEL):
        assert TrainingData(folder, fingerprint).manifest.answers == 11
    with pytest.raises(UsageError, match="made by the model toy-0123, not by other"):
        TrainingData(folder, "other")


def test_unfinished_data_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text("utf-8").replace('"complete": true', '"complete": false'))
    with pytest.raises(UsageError, match="is unfinished"):
        TrainingData(folder)
    manifest = load_manifest(folder)
    assert manifest is not None and manifest.answers == 11


def test_a_folder_without_data(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="holds no training data"):
            TrainingData(folder)


def test_a_shard_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    answers = [Answer("a\u2028b", "chat", "MIT", "caf\udce9.jsonl", [1, 2], [3], "eos")] * 3
    packed = pack(answers)
    assert packed == pack(list(answers))
    (tmp_path / "shard").write_bytes(packed)
    import hashlib

    assert unpack(tmp_path / "shard", hashlib.sha256(packed).hexdigest()) == answers
