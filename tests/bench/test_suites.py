"""Suites by name: which files they are, what is read of them, and what is wrong with the others."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.suites import ALL, SUITES, find_files, read_suites
from paceline.errors import UsageError


def write(folder: Path, stem: str, *records: dict[str, Any]) -> Path:
    path = folder / f"{stem}.jsonl"
    lines = [json.dumps(record) for record in records or ({"turns": [stem]},)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def stems(names: Sequence[str], folder: Path | None) -> list[str]:
    return [path.stem for path in find_files(names, folder)]


def test_files_may_be_gzipped(tmp_path: Path) -> None:
    plain = write(tmp_path, "mine")
    write(tmp_path, "other")
    packed = tmp_path / "mine.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert "two files are named mine.jsonl" in refusal([str(plain), str(packed)], None)
    assert "two files are named mine.jsonl" in refusal([ALL], tmp_path)
    plain.unlink()
    for names, folder in (([str(packed)], None), (["mine"], tmp_path)):
        (text,) = read_suites(names, folder, None)
        assert (text.suite, text.record.turns) == ("mine", ("mine",))
    assert [text.suite for text in read_suites([ALL], tmp_path, None)] == ["mine", "other"]


def refusal(names: Sequence[str], folder: Path | None) -> str:
    with pytest.raises(UsageError) as caught:
        read_suites(names, folder, None)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder with some files of suites, and one of the user's own."""
    for stem in ("spec_bench", "cnndm", "llma_cnndm", "canitedit", "xsum", "mine"):
        write(tmp_path, stem)
    (tmp_path / "notes.txt").write_text("no suite")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["spec-bench"], ["spec_bench"]),
        (["cnndm"], ["cnndm", "llma_cnndm"]),  # a group
        (["code-edits"], ["canitedit"]),  # of a group, those that are there
        (["llma_cnndm"], ["llma_cnndm"]),  # one file of a group
        (["mine"], ["mine"]),  # the user's own
        (["xsum", "mine", "spec-bench"], ["xsum", "mine", "spec_bench"]),  # in this order
        (["cnndm", "llma_cnndm", "cnndm"], ["cnndm", "llma_cnndm"]),  # each once
        ([ALL], ["canitedit", "cnndm", "llma_cnndm", "mine", "spec_bench", "xsum"]),
        (["mine", ALL], ["mine", "canitedit", "cnndm", "llma_cnndm", "spec_bench", "xsum"]),
    ],
)
def test_names_stand_for_files(filled: Path, names: list[str], expected: list[str]) -> None:
    assert stems(names, filled) == expected
    assert [text.suite for text in read_suites(names, filled, None)] == expected


def test_a_path_needs_no_folder(tmp_path: Path) -> None:
    path = write(tmp_path, "own", {"id": "a", "task": "chat", "turns": ["one", "two"]})
    (text,) = read_suites([str(path)], None, None)
    assert (text.suite, text.record.id, text.record.task) == ("own", "a", "chat")
    assert text.record.turns == ("one", "two")


def test_every_suite_has_files_of_its_own() -> None:
    files = [stem for suite in SUITES.values() for stem in suite]
    assert len(files) == len(set(files))
    assert all(SUITES.values())
    assert ALL not in SUITES


def test_a_limit_counts_each_task_of_each_suite(tmp_path: Path) -> None:
    tasks = ["rag", "qa", "rag", "qa", "rag", ""]
    records = [{"id": n, "task": task, "turns": ["x"]} for n, task in enumerate(tasks)]
    for stem in ("one", "two"):
        write(tmp_path, stem, *records)
    texts = read_suites([ALL], tmp_path, 2)
    ids = [(text.suite, text.record.id) for text in texts]
    assert ids == [(suite, number) for suite in ("one", "two") for number in "01235"]
    assert len(read_suites([ALL], tmp_path, None)) == 12
    assert [text.record.id for text in read_suites(["one"], tmp_path, 1)] == ["0", "1", "5"]


# In the format of Spec-Bench's own file.
CATEGORIES = (
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
    *("translation", "summarization", "qa", "math_reasoning", "rag"),
)


def test_spec_bench_counts_the_categories_of_mt_bench_as_one_task(tmp_path: Path) -> None:
    records = [
        {"question_id": number, "category": category, "turns": ["a", "b"], "reference": ["c", "d"]}
        for number, category in enumerate(CATEGORIES * 2, start=81)
    ]
    write(tmp_path, "spec_bench", *records)
    texts = read_suites(["spec-bench"], tmp_path, None)
    assert [text.record.id for text in texts] == [str(number) for number in range(81, 107)]
    tasks = [text.record.task for text in texts]
    assert tasks == [*["multi_turn"] * 8, *CATEGORIES[8:]] * 2
    limited = read_suites(["spec-bench"], tmp_path, 3)
    counts = [text.record.task for text in limited]
    assert counts.count("multi_turn") == 3
    assert counts.count("rag") == 2
    plain = tmp_path / "spec_bench.jsonl"
    (tmp_path / "spec_bench.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert [text.record.task for text in read_suites(["spec-bench"], tmp_path, 3)] == counts


def test_other_files_keep_their_tasks(tmp_path: Path) -> None:
    write(tmp_path, "mine", *({"id": n, "task": "math", "turns": ["a"]} for n in range(2)))
    assert [text.record.task for text in read_suites(["mine"], tmp_path, 1)] == ["math"]


def test_categories_may_be_the_tasks(tmp_path: Path) -> None:
    records = [
        {"id": number, "task": "multi_turn", "category": category, "turns": ["a"]}
        for number, category in enumerate(["math", "writing", "math"])
    ]
    write(tmp_path, "mt_bench", *records, {"id": 3, "task": "chat", "turns": ["a"]})
    found = {
        by_category: [
            (text.record.id, text.record.task)
            for text in read_suites(["mt-bench"], tmp_path, 1, by_category)
        ]
        for by_category in (False, True)
    }
    assert found[False] == [("0", "multi_turn"), ("3", "chat")]
    assert found[True] == [("0", "math"), ("1", "writing"), ("3", "chat")]


def test_without_a_folder_only_paths_are_known() -> None:
    assert "cannot find 'xsum': name the folder that holds it with --data" in refusal(
        ["xsum"], None
    )
    assert "--data" in refusal([ALL], None)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no'} is not a folder" in refusal(["xsum"], tmp_path / "no")
    assert "is not a folder" in refusal(["xsum"], write(tmp_path, "file"))


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "holds no JSONL files: fill it with 'paceline bench fetch'" in refusal([ALL], tmp_path)


def test_a_suite_that_is_not_there_says_what_gets_it(tmp_path: Path) -> None:
    message = refusal(["cnndm"], tmp_path)
    assert "has no cnndm.jsonl or llma_cnndm.jsonl for the suite 'cnndm'" in message
    assert f"fetch it with 'paceline bench fetch cnndm --data {tmp_path}'" in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spec-bnech", "unknown suite 'spec-bnech' (did you mean spec-bench?)"),
        ("mime", "(did you mean mine?)"),
        ("qqqqqq", "unknown suite 'qqqqqq': choose one of spec-bench"),
        ("", "unknown suite ''"),
    ],
)
def test_an_unknown_suite_suggests_a_close_one(filled: Path, name: str, words: str) -> None:
    message = refusal([name], filled)
    assert words in message
    assert message.endswith("mine, spec_bench")
    assert message.count(" xsum,") == 1


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    assert f"cannot read the prompt file {missing}" in refusal([str(missing)], None)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    assert f"{empty} holds no records" in refusal(["empty"], tmp_path)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"turns": ["good"]}\n{"turns": []}\n')
    assert f'{broken}, line 2 needs "turns"' in refusal(["broken"], tmp_path)


def test_two_files_with_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [str(write(folder, "same")) for folder in (tmp_path, tmp_path / "other")]
    assert "two files are named same.jsonl: rename one of them" in refusal(paths, None)
    assert stems([paths[0], paths[0]], None) == ["same"]
