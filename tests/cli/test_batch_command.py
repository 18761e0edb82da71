"""`paceline batch` as its user meets it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Command
from tests.forked import Forked
from tests.helpers import on_its_model

from paceline.cli.batch_ray import _anywhere
from paceline.serve.batch_lines import AnswersOf
from paceline.session import Session

pytest.importorskip("fastapi", reason="needs the extra 'serve'")


def write_requests(path: Path, model: str, count: int, **fields: Any) -> None:
    with path.open("w") as file:
        for place in range(count):
            body = {"model": model, "prompt": "x" * (1 + place % 9), "seed": place, **fields}
            record = {"method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps({"custom_id": f"{place}", **record}) + "\n")


def results(path: Path) -> dict[str, Any]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({record["custom_id"] for record in records}) == len(records)
    return {record["custom_id"]: record["response"]["body"]["choices"] for record in records}


def test_a_batch_from_end_to_end(command: Command, tiny: Path, tmp_path: Path) -> None:
    asked, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_requests(asked, "tiny", 5, max_tokens=8)
    words = ["batch", "--input", asked, "--output", output, "--model", tiny, "--method", "anpd"]
    first = command(*words)
    assert first.code == 0, first.err
    assert "5 answered;" in first.said
    assert len(results(output)) == 5
    again = command(*words)
    assert again.code == 0
    assert "nothing to do" in again.said
    with asked.open("a") as file:
        file.write("broken\n")
    broken = command(*words)
    assert broken.code == 1
    assert "0 answered, 1 failed (invalid_json_line 1), 5 already had results" in broken.said
    still = command(*words)
    assert "nothing to do" in still.said
    assert still.code == 1  # one of them is a failure


def test_mistakes_are_told_before_a_model_is_loaded(command: Command, tmp_path: Path) -> None:
    asked, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    words = ["batch", "--input", asked, "--output", output, "--model", "no/such/model"]
    assert "cannot read the batch file" in command(*words).said
    assert "is a folder: name a batch file" in command(*words[:2], tmp_path, *words[3:]).said
    os.mkfifo(pipe := tmp_path / "pipe")
    assert "name a file, not a pipe" in command(*words[:2], pipe, *words[3:]).said
    write_requests(asked, "m", 2)
    assert "it is a folder" in command(*words[:4], tmp_path, *words[5:]).said
    reading, writing = os.pipe()
    for name in (pipe, f"/dev/fd/{writing}"):
        assert "only be continued in a file" in command(*words[:4], name, *words[5:]).said
    os.close(reading)
    os.close(writing)
    assert "--ray-actors would be ignored" in command(*words, "--ray-actors", 2).said
    write_requests(asked, "m", 2)
    assert "must be different files" in command(*words[:4], asked, *words[5:]).said
    asked.write_bytes(2 * asked.read_bytes())
    twice = command(*words)
    assert twice.code == 2
    assert "have the same custom_id" in twice.said


def test_a_file_without_requests_is_refused_before_a_model_is_loaded(
    command: Command, tmp_path: Path
) -> None:
    asked, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_text("not a batch\n")
    ran = command("batch", "--input", asked, "--output", output, "--model", "no/such/model")
    assert ran.code == 2
    assert "holds no requests: line 1" in ran.said
    assert not output.exists()


def test_actors_find_what_a_method_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "parts,2", "self", "pld"):
        (tmp_path / name).mkdir()

    def anywhere(method: str) -> str:
        return _anywhere(AnswersOf("no/such/model", method, ["m"], 4)).method

    assert anywhere("speculative:draft=./tiny,length=3") == (
        f"speculative:draft={tmp_path}/tiny,length=3"
    )
    assert anywhere("speculative:draft=tiny") == f"speculative:draft={tmp_path}/tiny"
    assert anywhere("medusa:parts=(parts,2)") == f"medusa:parts=({tmp_path}/parts,2)"
    assert anywhere("x:inner=(ouroboros:draft=tiny,n=2)") == (
        f"x:inner=(ouroboros:draft={tmp_path}/tiny,n=2)"
    )
    for same in ("auto", "auto:sources=pld+anpd", "auto:sources=pld", "ouroboros:draft=self"):
        assert anywhere(same) == same
    for same in ("speculative:draft=owner/name", "anpd:n=5,k=7", "package.of:Class:n=5"):
        assert anywhere(same) == same


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_batch_leaves_a_file_that_goes_on(
    command: Command, tiny: Path, tmp_path: Path, number: int, code: int
) -> None:
    asked, output, whole = (tmp_path / name for name in ("in", "out", "whole"))
    count = 24
    write_requests(asked, "tiny", count, max_tokens=40, ignore_eos=True)
    words = ["batch", "--input", asked, "--model", tiny, "--method", "plain", "--max-batch", 2]
    running = Forked(["paceline", *words, "--output", output], stderr=subprocess.PIPE, text=True)
    while running.poll() is None and not (output.exists() and output.stat().st_size):
        time.sleep(0.005)
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    assert running.returncode == code, said
    assert "interrupted: repeat the command to continue" in said
    assert "Traceback" not in said
    assert 0 < len(results(output)) < count
    assert command(*words, "--output", output).code == 0
    assert command(*words, "--output", whole).code == 0
    assert results(output) == results(whole)


class _Object:
    pass


def test_sigterm_ends_a_batch_even_where_errors_are_ignored(
    command: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in callbacks of weak references, of which asyncio has many."""
    stopped = list[bool]()

    def terminate(_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        for _ in range(9):  # the handler is called between steps
            pass

    async def work(*_: object) -> None:
        gone = _Object()
        watched = weakref.ref(gone, terminate)
        del gone
        try:
            await asyncio.sleep(2)
        finally:
            stopped.append(watched() is None)
        stopped.append(False)

    monkeypatch.setattr("paceline.serve.batch_run.run_batch", work)
    asked, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_requests(asked, "tiny", 1)
    words = ["batch", "--input", asked, "--output", output, "--model", tiny, "--method", "plain"]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert command(*words).code == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == [True]


@pytest.mark.model
def test_a_batch_on_the_default_model(
    command: Command, tmp_path: Path, default_model: Session
) -> None:
    """With `auto`, six texts together: each is the one that plain decoding writes alone."""
    asked, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    questions = ["Name three rivers.", "Repeat: one two three one two three one two"]
    with asked.open("w") as file:
        for place in range(6):
            body = {
                "model": "smollm2-135m",
                "messages": [{"role": "user", "content": questions[place % 2]}],
                "max_tokens": 12,
                "seed": place,
                "temperature": 0.8 * (place % 3 > 0),
            }
            record = {"method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps({"custom_id": f"{place}", **record}) + "\n")
    done = command("batch", "--input", asked, "--output", output)
    assert done.code == 0, done.err
    session = on_its_model(default_model, "plain")
    found = results(output)
    for place in range(6):
        alone = session.chat(
            questions[place % 2],
            max_new_tokens=12,
            seed=place,
            temperature=0.8 * (place % 3 > 0),
        )
        assert found[f"{place}"][0]["message"]["content"] == alone.text
