"""The order of prompts."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.shared import prompt_file

from paceline.errors import UsageError
from paceline.prompts import PromptRecord
from paceline.training.order import PromptFile, interleave, read_prompt_files


def some_files(sizes: list[int]) -> list[PromptFile]:
    return [
        PromptFile(
            Path(f"{name}.jsonl"),
            str(name),
            "",
            tuple(PromptRecord(f"{name}/{i}", ("x",), task=str(name)) for i in range(size)),
        )
        for name, size in enumerate(sizes)
    ]


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_every_beginning_holds_its_share_of_every_file(sizes: list[int], seed: int) -> None:
    files = some_files(sizes)
    order = interleave(files, seed)
    every = {record.id for file in files for record in file.records}
    assert len(order) == len(every) and {record.id for record in order} == every
    assert order == interleave(files, seed)
    for length in range(len(order) + 1):
        for name, size in enumerate(sizes):
            taken = sum(record.task == str(name) for record in order[:length])
            # Each file is at most one prompt away from the stretch that has been gone.
            assert abs(taken - size * length / len(order)) <= len(sizes)


def test_the_seed_decides_on_the_order() -> None:
    (file,) = files = some_files([20])
    orders = [interleave(files, seed) for seed in range(3)]
    assert orders[0] != orders[1] != orders[2] and orders[0] != list(file.records)
    # The same in every version, or a run could not be gone on with.
    assert [record.id for record in orders[0][:4]] == ["0/17", "0/1", "0/0", "0/4"]


def test_licences_and_sources_are_those_of_the_record_else_of_the_file(tmp_path: Path) -> None:
    own = prompt_file(tmp_path, 1, "own.jsonl", licence="CC0-1.0", source="somewhere")
    none = prompt_file(tmp_path, 1, "none.jsonl")
    first, second = read_prompt_files([own, none], ["MIT", "Apache-2.0"])
    assert (first.records[0].licence, first.records[0].source) == ("CC0-1.0", "somewhere")
    assert (second.records[0].licence, second.records[0].source) == ("Apache-2.0", "none.jsonl")
    assert [file.licence for file in read_prompt_files([own, none], ["MIT"])] == ["MIT", "MIT"]
    assert [file.licence for file in read_prompt_files([own, none])] == ["", ""]
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    assert first.as_json() == {
        "name": "own.jsonl",
        "sha256": digest,
        "records": 1,
        "licence": "MIT",
    }


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    paths = [prompt_file(tmp_path, 2, f"{name}.jsonl") for name in "abc"]
    with pytest.raises(UsageError, match="name at least one file"):
        read_prompt_files([])
    with pytest.raises(UsageError, match=r"2 licences were .* files of prompts number 3"):
        read_prompt_files(paths, ["MIT", "MIT"])
    with pytest.raises(UsageError, match=r"a\.jsonl was given twice"):
        read_prompt_files([paths[0], paths[0]])
    with pytest.raises(UsageError, match=r"cannot read the prompt file .*missing"):
        read_prompt_files([tmp_path / "missing.jsonl"])
    os.mkfifo(pipe := tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match=r"pipe\.jsonl is read several times: name a file"):
        read_prompt_files([pipe])
