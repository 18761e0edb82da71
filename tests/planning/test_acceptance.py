"""Tables of acceptance: what they refuse, and their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from tests.planning.tables import VICUNA, tables

from paceline.errors import ModelError
from paceline.planning.acceptance import AcceptanceTable


def test_a_table_knows_its_size() -> None:
    assert (VICUNA.distances, VICUNA.ranks) == (3, 10)
    assert VICUNA.up_to(2).rows == VICUNA.rows[:2]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((), "at least one distance"),
        (((),), "at least one distance"),
        (((0.5, 0.1), (0.5,)), "distance 2 of the acceptance table has 1 ranks, not 2"),
        (((0.5, -0.1),), "not a probability"),
        (((float("nan"),),), "not a probability"),
        (((1.5,),), "not a probability"),
        (((0.6, 0.5),), "adds up to 1.100000"),
    ],
)
def test_what_is_no_table_is_refused(rows: tuple[tuple[float, ...], ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AcceptanceTable(rows)


@given(table=tables())
def test_what_was_written_is_read(table: AcceptanceTable, tmp_path_factory: object) -> None:
    folder = tmp_path_factory.mktemp("tables")  # type: ignore[attr-defined]
    path = folder / "acceptance.json"
    table.save(path, {"prompts": "alpaca"})
    assert AcceptanceTable.load(path) == table
    assert json.loads(path.read_text(encoding="utf-8"))["about"] == {"prompts": "alpaca"}
    assert [file.name for file in folder.iterdir()] == ["acceptance.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        pytest.param("[" * 100_000, id="nested"),
        '{"format": 2, "kind": "acceptance", "acceptance": [[0.5]]}',
        '{"format": 1, "kind": "acceptance", "acceptance": 3}',
        '{"format": 1, "kind": "acceptance", "acceptance": [["much"]]}',
        '{"format": 1, "kind": "acceptance", "acceptance": [[2]]}',
    ],
)
def test_a_damaged_file_is_one_sentence_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "acceptance.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match="is not an acceptance table") as caught:
        AcceptanceTable.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "acceptance.json"
    with pytest.raises(ModelError, match="cannot read the acceptance table"):
        AcceptanceTable.load(path)
    with pytest.raises(ModelError, match="cannot write"):
        VICUNA.save(path, {})
