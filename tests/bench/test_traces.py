"""Trace files: what can be read, and what is wrong with the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.traces import TraceRecord, read_trace, read_traces
from paceline.errors import UsageError

USER = {"role": "user", "content": "hi"}
CALL = {"id": "1", "function": {"name": "find", "arguments": '{"what": "é"}'}}


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def exchange(name: str, output: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "turns": ["q"], "outputs": [output], **more}


def test_turns_and_outputs_make_a_conversation(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {
            "id": "a",
            "prompt_id": 7,
            "task": "chat",
            "turns": ["one", "two"],
            "outputs": ["1", "2"],
            "reference_documents": ["doc"],
            "unknown": 1,
        },
        {"turns": ["x"], "outputs": ["y"]},
    )
    messages = (("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2"))
    first, second = read_trace(path)
    assert first == TraceRecord("a", messages, "7", "chat", ("doc",))
    assert first.outputs == ["1", "2"]
    assert second == TraceRecord("2", (("user", "x"), ("assistant", "y")), "2")


def test_a_trajectory_keeps_roles_and_writes_calls_as_json(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "<left out>"},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "", "name": "find", "tool_call_id": "1"},
        {"role": "assistant", "content": "Well:", "tool_calls": [CALL]},
        {"role": "tool", "content": "found"},
        {"role": "assistant", "content": "It is there."},
    ]
    path = write(tmp_path / "t.jsonl", {"id": "a", "messages": messages, "turns": ["hi"]})
    (record,) = read_trace(path)
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [role for role, _ in record.messages] == roles
    first, second, third = record.outputs
    assert json.loads(first) == [CALL]
    assert "é" in first
    assert second == f"Well:\n{first}"
    assert third == "It is there."
    assert record.messages[3] == ("tool", "")
    assert record.messages[0] == ("system", "<left out>")
    (told,) = read_trace(path, system="Be kind.")
    assert told.messages == (("system", "Be kind."), *record.messages[1:])


@pytest.mark.parametrize(
    ("record", "words"),
    [
        pytest.param([], "not a JSON object", id="list"),
        pytest.param({}, '"turns" and "outputs"', id="empty object"),
        pytest.param({"turns": ["q"]}, '"turns" and "outputs"', id="no outputs"),
        pytest.param({"outputs": ["a"]}, '"turns" and "outputs"', id="no turns"),
        pytest.param({"turns": [], "outputs": []}, '"turns" and "outputs"', id="no texts"),
        pytest.param({"turns": ["q", "r"], "outputs": ["a"]}, "equally many", id="not aligned"),
        pytest.param({"turns": ["q"], "outputs": [None]}, '"turns" and "outputs"', id="null"),
        pytest.param({"turns": ["q"], "outputs": "a"}, '"turns" and "outputs"', id="text"),
        pytest.param({"turns": ["q"], "outputs": [" \n"]}, "empty text", id="blank output"),
        pytest.param({"turns": [""], "outputs": ["a"]}, "empty text", id="empty turn"),
        pytest.param(exchange("a", "b", reference_documents="c"), "list of texts", id="reference"),
        pytest.param({"messages": None}, "list of objects", id="messages null"),
        pytest.param({"messages": ["hi"]}, "list of objects", id="messages of texts"),
        pytest.param({"messages": []}, "must hold one", id="no messages"),
        pytest.param({"messages": [USER]}, "must hold one", id="nobody answers"),
        pytest.param(
            {"messages": [{"role": "assistant", "content": "hi"}, USER]},
            "after one of another role",
            id="the assistant begins",
        ),
        pytest.param(
            {"messages": [USER, {"role": "assistant", "content": None}]},
            "empty assistant message",
            id="neither text nor calls",
        ),
        pytest.param(
            {"messages": [USER, {"role": "assistant", "content": ["a"]}]},
            "content is not text",
            id="content of parts",
        ),
        pytest.param(
            {"messages": [{"content": "x"}, USER, {"role": "assistant", "content": "a"}]},
            "without a role",
            id="no role",
        ),
    ],
)
def test_a_malformed_record_is_named_by_its_line(tmp_path: Path, record: Any, words: str) -> None:
    path = write(tmp_path / "t.jsonl", exchange("good", "x"), record)
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert f"{path}, line 2" in message
    assert words in message
    assert "\n" not in message


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, words in [("empty", "holds no records"), ("missing", "unknown suite 'missing'")]:
        with pytest.raises(UsageError, match=words):
            read_traces([name], tmp_path)
    (tmp_path / "broken.jsonl").write_text('{"turns": ')
    with pytest.raises(UsageError, match="line 1 is not JSON"):
        read_traces(["broken"], tmp_path)


def test_the_file_is_the_suite_and_all_reads_every_one(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.jsonl", exchange("1", "x"), exchange("2", "y"))
    found = read_traces(["all"], tmp_path)
    assert [(each.suite, each.record.id) for each in found] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "1"),
        ("b", "2"),
    ]


@pytest.mark.parametrize(
    ("limit", "taken"),
    [
        (None, list(range(10))),
        (1, [0]),
        (2, [0, 5]),
        (3, [0, 3, 6]),
        (10, list(range(10))),
        (99, list(range(10))),
    ],
)
def test_a_limit_takes_records_from_all_over_the_file(
    tmp_path: Path, limit: int | None, taken: list[int]
) -> None:
    write(tmp_path / "t.jsonl", *(exchange(str(n), "x") for n in range(10)))
    found = read_traces(["t"], tmp_path, limit)
    assert [int(each.record.id) for each in found] == taken


def test_other_answers_to_the_prompt_become_references(tmp_path: Path) -> None:
    write(
        tmp_path / "t.jsonl",
        exchange("a", "from a", prompt_id="p", reference_documents=["doc"]),
        exchange("b", "from b", prompt_id="q"),
        {"id": "c", "prompt_id": "p", "turns": ["q", "r"], "outputs": ["from c", "and c"]},
        exchange("d", "from d", prompt_id="p"),
        exchange("e", "from e"),
    )

    def references(answers: int, limit: int | None = None) -> dict[str, tuple[str, ...]]:
        found = read_traces(["t"], tmp_path, limit, answers)
        return {each.record.id: each.record.references for each in found}

    assert references(0) == {"a": ("doc",), "b": (), "c": (), "d": (), "e": ()}
    assert references(1)["a"] == ("doc", "from c\n\nand c")
    assert references(9)["a"] == ("doc", "from c\n\nand c", "from d")
    assert references(9)["d"] == ("from a", "from c\n\nand c")
    assert references(9)["b"] == references(9)["e"] == ()
    assert references(9, limit=1) == {"a": references(9)["a"]}  # out of the whole file
