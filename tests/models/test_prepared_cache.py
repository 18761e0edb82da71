"""Models that are kept as passes read them."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from paceline.errors import ModelError, UsageError
from paceline.file_locks import alone, lock_beside
from paceline.models import cache, prepared_cache
from paceline.models.prepared_cache import clear_prepared, find_prepared, keep_prepared

RECORD = {"some": ["words", 1.5, None]}
TENSORS = {
    "bytes": torch.arange(77, dtype=torch.uint8),
    "floats": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
    "places": torch.tensor([[1, -2], [3, 4]], dtype=torch.int32),
    "long": torch.tensor(7),
    "none": torch.zeros(0, 4),
}


@pytest.fixture(autouse=True)
def read_in_pieces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors take several readings; models are kept in `root`."""
    monkeypatch.setattr(prepared_cache, "_AT_ONCE", 16)


def test_what_was_kept_is_found() -> None:
    assert find_prepared("mark") is None
    keep_prepared("mark", RECORD, TENSORS)
    found = find_prepared("mark")
    assert found is not None
    record, tensors = found
    assert record == RECORD
    assert tensors.keys() == TENSORS.keys()
    for name, each in TENSORS.items():
        assert tensors[name].dtype == each.dtype
        assert torch.equal(tensors[name], each)
        assert tensors[name].data_ptr() % 64 == 0
    assert find_prepared("other") is None


def test_the_file_is_one_of_safetensors(root: Path) -> None:
    keep_prepared("mark", RECORD, TENSORS)
    found = load_file(root / "mark" / "tensors.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], each) for name, each in TENSORS.items())


def test_the_last_one_kept_counts() -> None:
    keep_prepared("mark", RECORD, TENSORS)
    keep_prepared("mark", {"new": 1}, {})
    assert find_prepared("mark") == ({"new": 1}, {})


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: flip(place / "tensors.safetensors", -1),
        lambda place: flip(place / "tensors.safetensors", 0),
        lambda place: flip(place / "tensors.safetensors", 12),
        lambda place: (place / "tensors.safetensors").write_bytes(b""),
        lambda place: (place / "tensors.safetensors").write_bytes(b"\x01" + bytes(7) + b"5"),
        lambda place: (place / "tensors.safetensors").write_bytes(bytes(range(200)) * 9),
        lambda place: (place / "tensors.safetensors").unlink(),
        lambda place: flip(place / "record.json", 3),
        lambda place: (place / "record.json").unlink(),
        lambda place: (place / "hashes.json").write_text("[]"),
        lambda place: (place / "hashes.json").unlink(),
        shutil.rmtree,
    ],
)
def test_what_is_damaged_counts_as_nothing(root: Path, damage: Callable[[Path], None]) -> None:
    keep_prepared("mark", RECORD, TENSORS)
    damage(root / "mark")
    assert find_prepared("mark") is None
    keep_prepared("mark", RECORD, TENSORS)
    assert find_prepared("mark") is not None


def test_every_flipped_bit_of_the_header_is_noticed(root: Path) -> None:
    keep_prepared("mark", RECORD, TENSORS)
    file = root / "mark" / "tensors.safetensors"
    whole = file.read_bytes()
    for place in range(8 + int.from_bytes(whole[:8], "little")):
        flip(file, place)
        assert find_prepared("mark") is None
        file.write_bytes(whole)
    assert find_prepared("mark") is not None


def test_the_longest_unused_ones_go(root: Path) -> None:
    for number in range(10):
        keep_prepared(str(number), RECORD, TENSORS)
        assert find_prepared("0") is not None  # used all the time
    kept = [mark for mark in map(str, range(10)) if find_prepared(mark)]
    assert len(kept) == 8
    assert {"0", "9"} <= {*kept}
    assert {path.name for path in root.iterdir()} == {*kept, ".lock"}


def test_a_new_one_stays_if_the_clock_was_set_back(root: Path) -> None:
    for number in range(8):
        keep_prepared(str(number), RECORD, TENSORS)
        os.utime(root / str(number), (4e9, 4e9))
    keep_prepared("new", RECORD, TENSORS)
    assert find_prepared("new") is not None
    assert len([*root.glob("*/hashes.json")]) == 8


def test_a_disk_that_is_nearly_full_is_left_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", ["free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(600))
    keep_prepared("mark", RECORD, TENSORS)
    assert find_prepared("mark") is None
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_what_killed_processes_have_left_is_deleted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if they have left the disk nearly full."""
    left = root / ".new-left" / "new"
    left.mkdir(parents=True)
    (left / "tensors.safetensors").write_bytes(b"half")
    usage = namedtuple("usage", ["free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0 if left.exists() else 1 << 30))
    keep_prepared("mark", RECORD, TENSORS)
    assert {path.name for path in root.iterdir()} == {"mark", ".lock"}


def test_tensors_of_other_kinds_are_not_kept() -> None:
    keep_prepared("mark", RECORD, {"halves": torch.zeros(3, dtype=torch.bfloat16)})
    assert find_prepared("mark") is None


def test_nobody_waits_for_long_to_keep_a_model(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that has the lock may have been stopped."""
    monkeypatch.setattr(cache, "PATIENCE", 0.1)
    root.mkdir(parents=True)
    with FileLock(root / ".lock"):
        keep_prepared("mark", RECORD, TENSORS)
    assert find_prepared("mark") is None
    keep_prepared("mark", RECORD, TENSORS)
    assert find_prepared("mark") is not None


def test_a_file_system_without_locks_is_left_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", missing)
    keep_prepared("mark", RECORD, TENSORS)
    assert find_prepared("mark") is None
    with pytest.raises(ModelError, match=r"its file system has no locks.* PACELINE_CACHE"):
        clear_prepared()
    place = root / "result.jsonl"
    with pytest.raises(UsageError, match=r"cannot write results: its file system has no locks"):
        alone(lock_beside(place), place, "results").__enter__()


def test_a_folder_that_cannot_be_made(root: Path) -> None:
    root.parent.mkdir()
    root.write_text("a file")
    keep_prepared("mark", RECORD, TENSORS)
    assert find_prepared("mark") is None


def test_clearing(root: Path) -> None:
    assert clear_prepared() == 0
    keep_prepared("mark", RECORD, TENSORS)
    mine = root / "mine"
    mine.mkdir()
    (mine / "model.gguf").write_text("mine")
    (root / "other.gguf").write_text("mine, too")
    assert clear_prepared() > sum(each.nbytes for each in TENSORS.values())
    assert find_prepared("mark") is None
    assert {path.name for path in root.iterdir()} == {".lock", "mine", "other.gguf"}
    assert [path.name for path in mine.iterdir()] == ["model.gguf"]
