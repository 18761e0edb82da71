"""Prompt files: what can be read, and what is wrong with the others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.prompts import Conversation, PromptRecord, demo_prompts, read_prompts

GOOD = '{"turns": ["hi"]}\n'


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_prompts(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_records_hold_messages_or_text_to_continue(tmp_path: Path) -> None:
    content = [
        {
            "id": "talk",
            "task": "chat",
            "turns": ["one", "two"],
            "reference_documents": ["old", ""],
            "unknown": 1,
        },
        {"prompt": "Once upon a time\n"},
        {"id": 7, "prompt": "x", "reference_documents": None, "task": None},
        {"id": None, "prompt": "y"},
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, content)))
    assert read_prompts(path) == [
        PromptRecord("talk", ("one", "two"), "chat", raw=False, references=("old", "")),
        PromptRecord("2", ("Once upon a time\n",), raw=True),
        PromptRecord("7", ("x",), raw=True),
        PromptRecord("4", ("y",), raw=True),
    ]


def test_licence_and_source_are_kept_in_the_words_of_the_file(tmp_path: Path) -> None:
    content = [
        {"prompt": "a", "licence": "MIT", "source": "somewhere"},
        {"prompt": "b", "license": "CC0-1.0"},
        {"prompt": "c", "licence": None},
    ]
    records = read_prompts(write(tmp_path, "\n".join(map(json.dumps, content))))
    assert [record.licence for record in records] == ["MIT", "CC0-1.0", ""]
    assert [record.source for record in records] == ["somewhere", "", ""]


def test_gzip_is_unpacked_whatever_the_name(tmp_path: Path) -> None:
    packed = gzip.compress(("\ufeff" + GOOD).encode())
    assert [record.turns for record in read_prompts(write(tmp_path, packed))] == [("hi",)]
    damages = [packed[:-9], packed[:5], packed[:12] + b"\xff" * 9, packed[:-8] + bytes(8)]
    for damaged in damages:
        assert "its gzip data is damaged" in refusal(write(tmp_path, damaged))


def test_the_names_of_spec_bench_stand_after_our_own(tmp_path: Path) -> None:
    content = [
        {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["c"]},
        {"question_id": 0, "category": "", "turns": ["a"]},
        {"id": "mine", "question_id": 82, "task": "chat", "category": "rag", "turns": ["a"]},
        {"id": None, "question_id": 83, "task": None, "category": "qa", "prompt": "a"},
        {"question_id": None, "category": None, "turns": ["a"]},
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, content)))
    found = [(record.id, record.task) for record in read_prompts(path)]
    assert found == [("81", "writing"), ("0", ""), ("mine", "chat"), ("83", "qa"), ("5", "")]


def test_a_limit_reads_no_further(tmp_path: Path) -> None:
    path = write(tmp_path, f"{GOOD}\n{GOOD}this line is broken\n")
    assert [record.id for record in read_prompts(path, limit=1)] == ["1"]
    assert [record.id for record in read_prompts(path, limit=2)] == ["1", "3"]
    with pytest.raises(UsageError, match="line 4 is not JSON"):
        read_prompts(path, limit=3)


@pytest.mark.parametrize(
    ("content", "turns"),
    [
        pytest.param("\ufeff" + GOOD, ["hi"], id="byte order mark"),
        pytest.param(GOOD.replace("\n", "\r\n") * 2, ["hi", "hi"], id="windows lines"),
        pytest.param(GOOD.strip(), ["hi"], id="no final newline"),
        pytest.param(f"\n \n\t\n{GOOD}\n\n", ["hi"], id="blank lines"),
        pytest.param(f"   {GOOD}", ["hi"], id="indented"),
        pytest.param('{"prompt": "a\u2028b\u2029c\x85d"}', ["a\u2028b\u2029c\x85d"], id="U+2028"),
        pytest.param('{"prompt": "a\\nb\\u0000"}', ["a\nb\0"], id="escapes"),
        pytest.param('{"prompt": "naïve 你好 🚲"}', ["naïve 你好 🚲"], id="beyond ASCII"),
        pytest.param('{"prompt": "\\ud83d\\udeb2"}', ["🚲"], id="a pair of surrogates"),
        pytest.param(json.dumps({"prompt": "x" * 2_000_000}), ["x" * 2_000_000], id="huge line"),
    ],
)
def test_unusual_files_are_read(tmp_path: Path, content: str, turns: list[str]) -> None:
    records = read_prompts(write(tmp_path, content))
    assert [turn for record in records for turn in record.turns] == turns


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("hello", "is not JSON", id="no JSON"),
        pytest.param('{"turns": ["hi"]', "is not JSON", id="cut short"),
        pytest.param("{'turns': ['hi']}", "is not JSON", id="Python"),
        pytest.param(GOOD.strip() * 2, "is not JSON", id="two on a line"),
        pytest.param("[" * 100_000, "is not JSON", id="deeply nested"),
        pytest.param('{"turns": ["hi"], "id": %s}' % ("1" * 5000), "is not JSON", id="digits"),
        pytest.param('{"prompt": "\\ud800"}', "is not JSON", id="half a character"),
        pytest.param('["hi"]', "not a JSON object", id="list"),
        pytest.param("42", "not a JSON object", id="number"),
        pytest.param("null", "not a JSON object", id="null"),
        pytest.param('"hi"', "not a JSON object", id="string"),
        pytest.param("{}", 'needs "turns"', id="empty object"),
        pytest.param('{"text": "hi"}', 'needs "turns"', id="neither"),
        pytest.param('{"turns": []}', 'needs "turns"', id="no turns"),
        pytest.param('{"turns": "hi"}', 'needs "turns"', id="turns is text"),
        pytest.param('{"turns": null, "prompt": "hi"}', 'needs "turns"', id="turns is null"),
        pytest.param('{"turns": ["hi", 3]}', 'needs "turns"', id="a number among turns"),
        pytest.param('{"turns": ["hi", ""]}', 'needs "turns"', id="an empty turn"),
        pytest.param('{"turns": [" \\n"]}', 'needs "turns"', id="a blank turn"),
        pytest.param('{"prompt": ""}', 'needs "turns"', id="an empty prompt"),
        pytest.param('{"prompt": ["hi"]}', 'needs "turns"', id="prompt is a list"),
        pytest.param('{"prompt": null}', 'needs "turns"', id="prompt is null"),
        pytest.param('{"prompt": "x", "reference_documents": "y"}', "list of texts", id="ref text"),
        pytest.param('{"prompt": "x", "reference_documents": [1]}', "list of texts", id="ref int"),
        pytest.param('{"prompt": "x", "reference_documents": ""}', "list of texts", id="ref empty"),
    ],
)
def test_a_malformed_record_is_named_by_its_line(tmp_path: Path, line: str, words: str) -> None:
    message = refusal(write(tmp_path, f"{GOOD}\n{line}\n{GOOD}"))
    assert "line 3" in message
    assert words in message
    assert len(message) < 400


@pytest.mark.parametrize("content", ["", "\n", " \n\t\n\n", "\ufeff"])
def test_a_file_without_records_is_refused(tmp_path: Path, content: str) -> None:
    assert "holds no records" in refusal(write(tmp_path, content))


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"prompt": "caf\xe9"}', GOOD.encode("utf-16")])
def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "not UTF-8" in refusal(write(tmp_path, content))


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "missing.jsonl")
    assert "irectory" in refusal(tmp_path)
    assert "irectory" in refusal(write(tmp_path, GOOD) / "below")


def test_the_demo_prompts_are_of_four_kinds() -> None:
    prompts: dict[str, Any] = {prompt.task: prompt for prompt in demo_prompts()}
    assert list(prompts) == ["chat", "summarization", "code_edit", "rag"]
    assert len({prompt.id for prompt in prompts.values()}) == 4
    for prompt in prompts.values():
        assert prompt.turns and all(prompt.turns) and not prompt.raw
    # All but the open question quote what the answer will be taken from.
    assert len(prompts["chat"].turns[0]) < 500
    assert all(len(prompts[task].turns[0]) > 800 for task in ("summarization", "code_edit", "rag"))


def test_answers_stand_between_the_turns_unless_they_are_one_text() -> None:
    def asked(raw: bool, template: str | None) -> list[object]:
        talk, found = Conversation(PromptRecord("1", ("a", "b"), raw=raw), template), []
        while not talk.ended:
            found.append(talk.ask())
            talk.take(f"to {len(found)}")
        return found

    first, last = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    between = {"role": "assistant", "content": "to 1"}
    assert asked(False, "a template") == [[first], [first, between, last]]
    assert asked(True, "a template") == asked(False, None) == ["a\n\nb"]
