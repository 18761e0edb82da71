"""Benchmarks of sources: which texts are written, which are known, what is counted."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.simulate import Recording, TraceRecord
from paceline.datastore import PROMPT_TOKENS
from paceline.prompts import PromptRecord
from tests.bench.rig import clocked_session

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def related(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("related_questions")


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("replay_sources")


def dialogue(name: str, turns: int, document: str) -> PromptRecord:
    return PromptRecord(name, ("question",) * turns, references=("short", document))


def recorded(name: str, prompt: str, *answers: str) -> Recording:
    messages = [pair for each in answers for pair in (("user", prompt), ("assistant", each))]
    return Recording("file", TraceRecord(name, tuple(messages), prompt))


def test_dialogues_about_the_most_shared_document_come_first(related: Any) -> None:
    records = [
        dialogue("a", 2, "a document"),
        dialogue("b", 3, "another document"),
        dialogue("c", 1, "a third document"),
        dialogue("d", 2, "another document"),
    ]
    found = [(one.id, turn) for turn, one in related.related(records, 7)]
    assert found == [("b", 0), ("b", 1), ("b", 2), ("d", 0), ("d", 1), ("a", 0), ("a", 1)]


def test_only_questions_that_all_have_answered_are_kept(related: Any, tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    assert related.read_lines(path) == ([], [])
    lines = [{"way": way, "question": 0} for way in related.METHODS]
    lines.append({"way": "plain", "question": 1})
    path.write_text("".join(json.dumps(each) + "\n" for each in [{"command": "…"}, *lines]))
    assert related.read_lines(path) == ([{"command": "…"}], lines[:-1])


def test_a_dialogue_goes_on_with_the_answers_that_were_given(related: Any) -> None:
    record = PromptRecord("a", ("one?", "two?", "three?"))
    messages = related.conversation(record, 1, {("a", 0): "first", ("a", 1): "not yet"})
    assert [(each["role"], each["content"]) for each in messages] == [
        ("user", "one?"), ("assistant", "first"), ("user", "two?"),
    ]  # fmt: skip


def test_what_is_written_is_not_known_beforehand(replay: Any) -> None:
    session, _ = clocked_session()
    everything = [
        recorded("0", "p", "own answer"),
        recorded("1", "p", "an other", "and more"),
        recorded("2", "q", "elsewhere"),
    ]
    texts, others = replay.split(everything[:1], everything, session, 3)
    assert [bytes(request.recorded) for request in texts["file"]] == [b"own"]
    assert [bytes(each[PROMPT_TOKENS:]) for each in others["file"]] == [b"an other", b"and more"]
    assert all(bytes(each[:PROMPT_TOKENS]) == b"ant>" for each in others["file"])


def test_no_prompt_is_written_twice_but_its_other_answers_are_known(replay: Any) -> None:
    session, _ = clocked_session()
    everything = [recorded("0", "p", "one"), recorded("1", "p", "two", "more")]
    texts, others = replay.split(everything, everything, session, 9)
    assert [bytes(request.recorded) for request in texts["file"]] == [b"one", b"more"]
    assert [bytes(each[PROMPT_TOKENS:]) for each in others["file"]] == [b"two"]


def test_each_source_is_left_out_once(replay: Any) -> None:
    left = {name: method for name, (method, _) in replay.contenders().items() if "without" in name}
    assert len(left) == len(replay.SOURCES)
    for name, method in left.items():
        assert method.endswith(f"without={name.removeprefix('without ')}")
    assert sys.modules["replay_sources"] is replay
