"""Small JSON files."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ModelError
from paceline.json_files import json_bytes, read_json, replace_file


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
