"""Small JSON files."""

from __future__ import annotations

from errno import ENOSPC
from pathlib import Path

import pytest

from paceline.errors import ModelError
from paceline.json_files import (
    CHECKPOINT,
    described,
    has_record,
    json_bytes,
    read_json,
    recorded,
    replace_file,
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path, content = tmp_path / "it.json", {"a": [1, "é", "caf\udce9"]}
    replace_file(path, json_bytes(content))
    assert read_json(path) == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'[["a", 1]]', b"1", b'""', b"null", b"\xff", b"[" * 100_000],
    ids=lambda content: repr(content[:12]),
)
def test_what_is_no_object_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"it\.json is damaged: it is not a JSON object"):
        read_json(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*it\.json"):
        read_json(tmp_path / "it.json")


def test_a_folder_is_finished_by_its_record(tmp_path: Path) -> None:
    record = tmp_path / "new" / "record.json"
    with recorded(record, "parts", {"count": 1}):
        (record.parent / "it").write_text("")
    assert read_json(record) == {"format": 1, "kind": "parts", "count": 1}
    assert has_record(record, "it")
    with described(record, "parts") as about:
        assert about == {"count": 1}
    other = pytest.raises(
        ModelError, match=r"record\.json does not describe heads \(it has .*\): name another folder"
    )
    with other, described(record, "heads"):
        pytest.fail("it is of another kind")


def test_a_folder_whose_writing_was_ended_has_no_record(tmp_path: Path) -> None:
    record, it = tmp_path / "record.json", tmp_path / "it"
    assert not has_record(record, "it")
    record.write_text("of another training")
    it.write_text("")
    with pytest.raises(KeyboardInterrupt), recorded(record, "parts", {}):
        raise KeyboardInterrupt
    with pytest.raises(ModelError, match="holds something else: choose another folder"):
        has_record(record, "it")
    (tmp_path / CHECKPOINT).write_text("{}")
    assert not has_record(record, "it")
    it.unlink()
    full = pytest.raises(ModelError, match=r"cannot write the parts to .*: No space left on device")
    with full, recorded(record, "parts", {}, "the parts"):
        raise OSError(ENOSPC, "No space left on device")
    assert not record.exists()
