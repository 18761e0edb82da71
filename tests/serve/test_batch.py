"""Batch files: answers, broken lines, and going on after an interruption."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.serve.live import MODEL, SlowToy, live, tool_session

from paceline.errors import UsageError
from paceline.serve.batch_lines import BatchLine, check_custom_ids, read_lines
from paceline.serve.batch_results import BatchCounts, results_in
from paceline.serve.batch_run import batch_server, run_batch
from paceline.session import Session

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

BROKEN: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"hello", "invalid_json_line"),
    "half JSON": (b'{"custom_id": "x"', "invalid_json_line"),
    "no object": (b"[1]", "invalid_json_line"),
    "not UTF-8": (b'{"custom_id": "\xff"}', "invalid_json_line"),
    "half a character": (b'{"custom_id": "\\ud800"}', "invalid_json_line"),
    "nested deeply": (b"[" * 50_000, "invalid_json_line"),
    "digits without end": (b"9" * 9_000, "invalid_json_line"),
    "no custom_id": (b'{"method": "POST"}', "missing_required_parameter"),
    "custom_id empty": (b'{"custom_id": ""}', "missing_required_parameter"),
    "custom_id number": (b'{"custom_id": 7}', "missing_required_parameter"),
    "method": (b'{"custom_id": "x", "method": "GET"}', "invalid_method"),
    "url": (b'{"custom_id": "x", "method": "POST", "url": "/v1/embeddings"}', "invalid_url"),
    "url list": (b'{"custom_id": "x", "method": "POST", "url": []}', "invalid_url"),
    "body": (b'{"custom_id": "x", "method": "POST", "url": "/v1/completions"}', "invalid_request"),
    "stream": (
        b'{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": {"stream": true}}',
        "invalid_request",
    ),
}


def chat(custom_id: str, text: str = "once upon", **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 20, "seed": 1, **fields}
    return _line(custom_id, CHAT, body)


def completion(custom_id: str, prompt: Any = "once upon", **fields: Any) -> bytes:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 20, "seed": 1, **fields}
    return _line(custom_id, TEXT, body)


def _line(custom_id: str, url: str, body: dict[str, Any]) -> bytes:
    record = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(record).encode()


class Rig:
    """A folder with a batch file and its results."""

    def __init__(self, folder: Path) -> None:
        self.input, self.output = folder / "in.jsonl", folder / "out.jsonl"
        self.errors = folder / "errors.jsonl"
        self.tasks = 0  # most at once

    def fill(self, *lines: bytes) -> None:
        self.input.write_bytes(b"\n".join(lines) + b"\n")

    def run(
        self,
        session: Session | None = None,
        apart: bool = False,
        cancel_after: int | None = None,
        max_batch: int = 4,
    ) -> BatchCounts:
        """Answer the file. cancel_after: so many results, as Ctrl-C does."""
        server = batch_server(session or tool_session(), [MODEL], max_batch)

        async def work() -> BatchCounts:
            def heard(counts: BatchCounts) -> None:
                if counts.answered + counts.failed == cancel_after:
                    running.cancel()

            results.heard = heard
            running = asyncio.ensure_future(run_batch(server, self._lines(), results))
            await running
            return results.counts

        with results_in(self.output, self.errors if apart else None) as results:
            return asyncio.run(work())

    def _lines(self) -> Iterator[BatchLine]:
        for line in read_lines(self.input):
            self.tasks = max(self.tasks, len(asyncio.all_tasks()))
            yield line

    def found(self, path: Path | None = None) -> dict[str, Any]:
        records = [json.loads(line) for line in (path or self.output).read_bytes().splitlines()]
        assert len({record["custom_id"] for record in records}) == len(records)
        return {record["custom_id"]: record for record in records}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def text_of(record: dict[str, Any]) -> Any:
    assert record["error"] is None
    assert record["response"]["status_code"] == 200, record
    return [
        choice.get("message", choice) | {"finish_reason": choice["finish_reason"]}
        for choice in record["response"]["body"]["choices"]
    ]


def test_a_large_max_batch_makes_no_more_tasks_than_there_are_lines(rig: Rig) -> None:
    rig.fill(*(completion(str(number)) for number in range(5)))
    assert rig.run(max_batch=10_000).answered == 5
    assert rig.tasks < 50


def test_answers_are_those_of_the_server(rig: Rig) -> None:
    lines = {
        "a": chat("a"),
        "b": chat("b", "another", temperature=0.9, seed=7, n=3),
        "c": completion("c", ["x", "yy"], temperature=0, logprobs=2),
        "d": chat("d", response_format={"type": "json_object"}, logprobs=True),
        "ü": completion("ü", echo=True, stop="a"),
    }
    rig.fill(*lines.values())
    counts = rig.run()
    assert (counts.answered, counts.failed) == (5, 0)
    found = rig.found()
    assert counts.tokens == sum(
        each["response"]["body"]["usage"]["completion_tokens"] for each in found.values()
    )
    with live(tool_session()) as served:
        for name, line in lines.items():
            asked = json.loads(line)
            direct = served.http.post(asked["url"], json=asked["body"])
            here = found[name]["response"]["body"]
            assert here["choices"] == direct.json()["choices"]
            assert here.keys() == direct.json().keys()
            assert here["object"] == direct.json()["object"]
            assert set(found[name]) == {"id", "custom_id", "response", "error"}
            assert found[name]["response"]["request_id"].startswith("req_")
    session = tool_session(method="plain")
    alone = session.chat("once upon", seed=1, temperature=1.0, max_new_tokens=20)
    assert text_of(found["a"])[0]["content"] == alone.text


def test_responses_are_answered_too(rig: Rig) -> None:
    body = {"model": MODEL, "input": "once upon", "max_output_tokens": 20, "seed": 1}
    rig.fill(_line("a", "/v1/responses", body), chat("b"))
    assert rig.run().tokens == 40
    found = rig.found()
    (item,) = found["a"]["response"]["body"]["output"]
    assert item["content"][0]["text"] == text_of(found["b"])[0]["content"]


def test_texts_are_written_together(rig: Rig) -> None:
    class Counting(SlowToy):
        most = 0

        def score(self, trees: Any, *more: Any) -> Any:
            Counting.most = max(Counting.most, len(trees))
            return super().score(trees, *more)

    rig.fill(*(completion(f"{place}", "x" * (place + 1)) for place in range(12)))
    rig.run(tool_session(Counting))
    assert Counting.most == 4
    assert len(rig.found()) == 12


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("apart", [False, True])
def test_a_broken_line_has_an_error_and_stops_no_other(rig: Rig, case: str, apart: bool) -> None:
    line, code = BROKEN[case]
    rig.fill(chat("a"), line, b"", chat("b"))
    counts = rig.run(apart=apart)
    assert (counts.answered, counts.failed, counts.codes) == (2, 1, {code: 1})
    found = rig.found()
    assert text_of(found["a"]) == text_of(found["b"])
    (broken,) = {**found, **(rig.found(rig.errors) if apart else {})}.keys() - {"a", "b"}
    record = rig.found(rig.errors if apart else rig.output)[broken]
    assert record["response"] is None
    assert record["error"]["code"] == code
    assert record["error"]["message"].startswith("line 2: ")
    assert rig.run(apart=apart).known == 3


def test_a_request_that_the_server_refuses_has_its_response(rig: Rig) -> None:
    rig.fill(chat("a", temperature=7), chat("b", model="other"), chat("c"))
    counts = rig.run(apart=True)
    assert (counts.answered, counts.failed) == (1, 2)
    assert counts.codes == {"invalid_value": 1, "model_not_found": 1}
    found = rig.found(rig.errors)
    assert found["a"]["error"] is None
    assert found["a"]["response"]["status_code"] == 400
    assert found["a"]["response"]["body"]["error"]["param"] == "temperature"
    assert found["b"]["response"]["status_code"] == 404
    assert list(rig.found()) == ["c"]


def test_what_fails_here_is_a_500_of_its_own(rig: Rig) -> None:
    class Breaking(SlowToy):
        def open(self, prompt: Any, *more: Any) -> Any:
            if len(prompt) == 3:
                raise RuntimeError("/secret/path is on fire")
            return super().open(prompt, *more)

    rig.fill(completion("a", "xx"), completion("b", "xxx"), completion("c", "xxxx"))
    counts = rig.run(tool_session(Breaking))
    assert (counts.answered, counts.failed) == (2, 1)
    assert rig.found()["b"]["response"]["status_code"] == 500
    assert "secret" not in rig.output.read_text()


def test_an_interrupted_batch_goes_on(rig: Rig) -> None:
    lines = [chat(f"{place}", "x" * (1 + place % 5), seed=place) for place in range(30)]
    rig.fill(*lines)
    with pytest.raises(asyncio.CancelledError):
        rig.run(tool_session(SlowToy), cancel_after=5)
    before = rig.output.read_bytes()
    assert before.endswith(b"\n")
    assert 5 <= len(rig.found()) < 30
    known = len(rig.found())
    counts = rig.run()
    assert (counts.known, counts.answered) == (known, 30 - known)
    after = rig.output.read_bytes()
    assert after.startswith(before)
    found = rig.found()
    whole = Rig(rig.input.parent / "whole")
    whole.input.parent.mkdir()
    whole.fill(*lines)
    whole.run()
    assert {name: text_of(each) for name, each in found.items()} == {
        name: text_of(each) for name, each in whole.found().items()
    }


def test_a_torn_last_line_is_done_again(rig: Rig) -> None:
    rig.fill(*(chat(f"{place}", seed=place) for place in range(3)))
    rig.run()
    whole = rig.output.read_bytes()
    texts = {name: text_of(each) for name, each in rig.found().items()}
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in (len(whole) - 1, last + 30, last + 7, last + 1, last):
        rig.output.write_bytes(whole[:cut])
        counts = rig.run()
        assert (counts.known, counts.answered) == (2, 1)
        assert rig.output.read_bytes().startswith(whole[:last])
        assert {name: text_of(each) for name, each in rig.found().items()} == texts


@pytest.mark.parametrize(
    "content", [b"my notes\n", b"my notes", b'{"id": "x"}\n', b"[1]\n", b'{"id": "batch_7"}\n{"a']
)
def test_files_of_other_kinds_are_left_alone(rig: Rig, content: bytes) -> None:
    rig.fill(chat("a"))
    rig.output.write_bytes(content)
    with pytest.raises(UsageError, match="is not a batch result"):
        rig.run()
    assert rig.output.read_bytes() == content


def test_another_request_of_the_same_name_is_refused(rig: Rig) -> None:
    rig.fill(chat("a"), chat("b"))
    rig.run()
    before = rig.output.read_bytes()
    rig.fill(chat("b"), chat("a", "something else"))
    with pytest.raises(UsageError, match=r"'a'.*line 2"):
        rig.run()
    assert rig.output.read_bytes() == before


def test_a_corrected_request_that_failed_needs_no_other_output_file(rig: Rig) -> None:
    rig.fill(chat("a"), chat("b", temperature=7))
    rig.run(apart=True)
    rig.fill(chat("a"), chat("b", temperature=1))
    with pytest.raises(UsageError, match=r"'b' in .*errors.jsonl .* delete that file"):
        rig.run(apart=True)
    rig.errors.unlink()
    assert rig.run(apart=True).known == 1
    assert list(rig.found()) == ["a", "b"]


def test_a_corrected_request_that_failed_in_the_only_file(rig: Rig) -> None:
    rig.fill(chat("a", temperature=7))
    rig.run()
    rig.fill(chat("a", temperature=1))
    with pytest.raises(UsageError, match=r"'a' in .*out.jsonl .* delete this line of it, or"):
        rig.run()


def test_an_answer_counts_more_than_an_older_failure(rig: Rig) -> None:
    rig.fill(chat("a", temperature=7))
    rig.run(apart=True)
    rig.fill(chat("a", temperature=1))
    rig.run()
    assert rig.run(apart=True).known == 1


def test_a_batch_ends_while_a_constraint_is_compiled(rig: Rig) -> None:
    session, free, ended = tool_session(), Event(), []

    def matcher(_: Any) -> Any:
        ended.append(free.wait(60))

    session._grammars.matcher = matcher  # type: ignore[method-assign]
    rig.fill(chat("a"), *(chat(f"{i}", response_format=held(i)) for i in range(3)))
    try:
        with pytest.raises(asyncio.CancelledError):
            rig.run(session, cancel_after=1)
        assert not ended
    finally:
        free.set()
    assert list(rig.found()) == ["a"]


def held(place: int) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": {"const": place}}}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_only_utf_8_is_read(rig: Rig, encoding: str) -> None:
    rig.input.write_bytes(chat("a") + b"\n" + chat("b").decode().encode(encoding))
    first, *others = read_lines(rig.input)
    assert first.error is None
    assert all(each.error and each.error[0] == "invalid_json_line" for each in others)


def test_a_file_of_something_else_is_refused(rig: Rig) -> None:
    rig.fill(b"id,question", b"1,Why?")
    with pytest.raises(UsageError, match="holds no requests: line 1: this is not JSON"):
        check_custom_ids(rig.input)
    rig.input.write_bytes(gzip.compress(chat("a")))
    with pytest.raises(UsageError, match="holds no requests: it is gzipped, unpack it first"):
        check_custom_ids(rig.input)


def test_a_full_disk_is_one_error(rig: Rig) -> None:
    resource = pytest.importorskip("resource")
    rig.fill(*(completion(str(place)) for place in range(8)))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, old[1]))
    try:
        with pytest.raises(UsageError, match="cannot write"):
            rig.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_names_are_given_once(rig: Rig) -> None:
    rig.fill(chat("a"), b"broken", chat("b"), chat("a", "another"))
    with pytest.raises(UsageError, match=r"lines 1 and 4 .*'a'"):
        check_custom_ids(rig.input)
    rig.input.write_bytes(b"\n\n")
    with pytest.raises(UsageError, match="no requests"):
        check_custom_ids(rig.input)
    rig.input.write_bytes(b"\xef\xbb\xbf" + chat("a"))
    assert check_custom_ids(rig.input) == 1
    assert next(read_lines(rig.input)).error is None


def test_one_process_writes_at_a_time(rig: Rig) -> None:
    refused = pytest.raises(UsageError, match="another process")
    with results_in(rig.output), refused, results_in(rig.output):
        pass
    with results_in(rig.output):
        pass
    assert [path.name for path in rig.output.parent.iterdir()] == ["out.jsonl"]
