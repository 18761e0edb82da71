"""What is kept about GGUF files of the user's own: found out once, checked, bounded, cleared."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_models import save_tiny_gguf, sha256
from transformers import PreTrainedTokenizerFast

import paceline.models.description_cache as kept
from paceline.models import clear_descriptions
from paceline.models.description_cache import described, hash_of
from paceline.models.gguf_file import GgufFile


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save_tiny_gguf(tmp_path / "tiny.gguf")


class Describer:
    """Counts how often a file is described, which takes seconds in earnest."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, file: Path, target: Path) -> None:
        self.count += 1
        for name in kept._PARTS:
            (target / name).write_text(f"{name} of {file.name}")


@pytest.fixture
def describer(monkeypatch: pytest.MonkeyPatch) -> Describer:
    made = Describer()
    monkeypatch.setattr(kept, "describe_gguf", made)
    return made


def text(file: Path) -> str:
    with described(GgufFile(file)) as folder:
        return (folder / "config.json").read_text()


def entries(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


def test_a_file_is_described_once_wherever_it_lies(
    file: Path, describer: Describer, tmp_path: Path, root: Path
) -> None:
    assert text(file) == "config.json of tiny.gguf"
    moved = tmp_path / "moved.gguf"
    file.rename(moved)
    assert text(moved) == "config.json of tiny.gguf"
    other = save_tiny_gguf(tmp_path / "other.gguf", seed=1)  # other weights, and nothing else
    assert text(other) == "config.json of tiny.gguf"
    assert (describer.count, len(entries(root))) == (1, 1)
    assert text(save_tiny_gguf(tmp_path / "q.gguf", family="qwen2")) == "config.json of q.gguf"
    assert (describer.count, len(entries(root))) == (2, 2)


def test_what_killed_processes_have_left_is_deleted(
    file: Path, describer: Describer, root: Path
) -> None:
    (root / ".new-left" / "new").mkdir(parents=True)
    (root / ".new-left" / "new" / "config.json").write_text("half")
    text(file)
    assert [path.name for path in entries(root)] == [GgufFile(file).mark()[:32]]


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "tokenizer.json").write_text("other"),
        lambda entry: (entry / "tokenizer.json").unlink(),
        lambda entry: (entry / "paceline.json").write_text("{"),
        lambda entry: (entry / "paceline.json").write_text("[]"),
        lambda entry: (entry / "paceline.json").write_text('{"files": {}}'),
        lambda entry: edit_record(entry, transformers="4.0"),
        lambda entry: edit_record(entry, files={}),
        lambda entry: edit_record(entry, files={"config.json": 3}),
    ],
)
def test_a_damaged_description_is_made_again(
    file: Path, describer: Describer, root: Path, damage: Callable[[Path], Any]
) -> None:
    text(file)
    (entry,) = entries(root)
    damage(entry)
    assert text(file) == "config.json of tiny.gguf"
    assert describer.count == 2
    text(file)
    assert describer.count == 2


def edit_record(entry: Path, **changes: Any) -> None:
    record = json.loads((entry / "paceline.json").read_text())
    (entry / "paceline.json").write_text(json.dumps(record | changes))


def test_the_longest_unused_go_first(
    describer: Describer, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_CACHE", replace(kept._CACHE, most=2))
    first, second, third = (
        save_tiny_gguf(tmp_path / f"{family}.gguf", family=family) for family in ("a", "bb", "ccc")
    )
    text(first)
    text(second)
    for entry in entries(root):
        os.utime(entry, (1, 1))
    text(first)
    text(third)
    assert describer.count == 3
    text(first)
    assert (describer.count, len(entries(root))) == (3, 2)
    text(second)
    assert describer.count == 4


def test_a_cache_that_cannot_be_written_is_done_without(
    file: Path, describer: Describer, root: Path
) -> None:
    root.parent.write_text("in the way")
    for _ in range(2):
        assert text(file) == "config.json of tiny.gguf"
        assert hash_of(file) == sha256(file)
    assert describer.count == 2


def test_what_is_kept_is_as_readable_as_other_files(
    file: Path, describer: Describer, root: Path
) -> None:
    text(file)
    (tmp := root / "mode").mkdir()
    kept_in = [path for path in root.iterdir() if path.is_dir() and path != tmp]
    assert kept_in and {path.stat().st_mode for path in kept_in} == {tmp.stat().st_mode}


def test_a_file_that_cannot_be_described_leaves_nothing(
    file: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path, target: Path) -> None:
        (target / "config.json").write_text("half")
        raise KeyError("llama.block_count")

    monkeypatch.setattr(kept, "describe_gguf", fail)
    with pytest.raises(KeyError):
        text(file)
    assert not root.exists()


def test_a_file_is_hashed_once_until_it_changes(
    file: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    hashed: list[Path] = []
    honest = kept.hash_file
    monkeypatch.setattr(kept, "hash_file", lambda path: hashed.append(path) or honest(path))
    status = file.stat()
    first = sha256(file)
    assert [hash_of(file), hash_of(file)] == [first, first]
    assert len(hashed) == 1
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert hash_of(file) == sha256(file) != first
    assert len(hashed) == 2
    os.utime(file, (5, 5))
    assert hash_of(file) == sha256(file)
    assert len(hashed) == 3
    (root / "hashes.json").write_text(json.dumps({str(file.resolve()): [1]}))
    assert hash_of(file) == sha256(file)
    assert len(hashed) == 4


def test_hashes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(kept, "_MOST_HASHES", 3)
    for number in range(5):
        path = tmp_path / f"{number}.gguf"
        path.write_text(str(number))
        hash_of(path)
    known = json.loads((root / "hashes.json").read_text())
    assert [Path(path).name for path in known] == ["2.gguf", "3.gguf", "4.gguf"]


def test_a_file_that_was_replaced_meanwhile_has_no_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    path = tmp_path / "a.gguf"
    path.write_text("a")

    def hashed(place: Path) -> str:
        place.write_text("other")
        return "of the other"

    monkeypatch.setattr(kept, "hash_file", hashed)
    assert hash_of(path) == "of the other"
    assert not (root / "hashes.json").exists()


def test_clearing_frees_everything(file: Path, describer: Describer, root: Path) -> None:
    assert clear_descriptions() == 0
    text(file)
    hash_of(file)
    assert clear_descriptions() > 100
    assert [path.name for path in root.iterdir()] == [".lock"]
    text(file)
    assert describer.count == 2


def test_the_tokenizer_is_the_same_without_reading_its_vocabulary_twice(
    file: Path, tmp_path: Path
) -> None:
    with described(GgufFile(file)) as folder:
        path = folder / "tokenizer_config.json"
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        settings = json.loads(path.read_text())
        other = Path(shutil.copytree(folder, tmp_path / "other"))
    assert settings.pop("added_tokens_decoder").keys() >= {"0", "1", "2"}
    (other / path.name).write_text(json.dumps(settings))
    plain = PreTrainedTokenizerFast.from_pretrained(other)
    assert plain.added_tokens_decoder == tokenizer.added_tokens_decoder
    assert plain.all_special_ids == tokenizer.all_special_ids
    assert plain.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    text = "<|im_start|>x  12 é<|im_end|>"
    assert plain(text).input_ids == tokenizer(text).input_ids
