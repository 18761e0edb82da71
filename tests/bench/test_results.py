"""Result files: what is written, and what is made of files that were cut off, damaged or others."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import paceline.bench.comparison
from paceline.bench.entries import Difference, Entry, LeftOut
from paceline.bench.results import FORMAT, ResultFile, read_results
from paceline.errors import UsageError
from paceline.stats import SourceStats, Stats
from tests.bench import killed
from tests.forked import Forked

ROOT = Path(__file__).parents[2]
HEADER = killed.HEADER
TRIAL = Entry("s", "t", "p", 0, 0, "plain", 3, 1, 1.0, Stats(tokens=1), output=(1,))
LEFT_OUT = LeftOut("suite", "task", "é\u2028", 0, "too long")


@pytest.fixture(autouse=True)
def nobody_meters(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process holds differs from run to run."""
    monkeypatch.setattr(paceline.bench.memory, "peak_meter", lambda device: lambda: None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a run that nobody interrupted."""
    path = tmp_path_factory.mktemp("run") / "new" / "run.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paceline.bench.memory, "peak_meter", lambda device: lambda: None)
        killed.run(path)
    return path.read_bytes()


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def line_of(**values: object) -> bytes:
    """The line of a trial with other values."""
    return json.dumps({**TRIAL.to_json(), **values}).encode()


def line_with(**values: object) -> bytes:
    """The line of a trial with other statistics."""
    return line_of(stats={**TRIAL.to_json()["stats"], **values})


# Entries and their lines.


def test_a_run_is_a_header_and_a_line_for_each_trial(undisturbed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(undisturbed)
    header, entries = read_results(path)
    assert header == {"format": FORMAT, **HEADER}
    kinds = Counter(each.method for each in entries if isinstance(each, Entry))
    assert kinds == dict.fromkeys(("plain", "pld", "anpd", "liar", "crashing"), 3 * 2)
    assert [each.key for each in entries if isinstance(each, LeftOut)] == [("suite", "long", 0)]
    for each in entries:
        if isinstance(each, Entry):
            assert bool(each.error) == (each.method == "crashing")
            assert bool(each.difference) == (each.method == "liar")


@pytest.mark.parametrize(
    "entry",
    [
        Entry("s", "", "p", 0, 0, "plain", 3, error="broke"),
        LEFT_OUT,
        replace(TRIAL, difference=Difference(1, 2, 3, math.inf)),
        Entry(
            "s",
            "t",
            "p",
            2,
            1,
            "anpd:n=4",
            7,
            tokens=5,
            seconds=0.1,
            stats=Stats(
                2,
                5,
                6,
                3,
                Counter({2: 1, 3: 1}),
                Counter({3: 2}),
                0,
                0.1,
                0.2,
                0.3,
                0.4,
                {"anpd": SourceStats(2, 2, 9, 5, 3, 1, 0.01)},
            ),
            peak_bytes=10,
            loop_share=0.25,
            output=(1, 2),
            difference=Difference(1, 2, None, None),
        ),
    ],
)
def test_an_entry_survives_its_file(entry: Entry | LeftOut, tmp_path: Path) -> None:
    ResultFile(tmp_path / "run.jsonl", HEADER).append(entry)
    assert read_results(tmp_path / "run.jsonl")[1] == [entry]
    assert ResultFile(tmp_path / "run.jsonl", HEADER, resume=True) == [entry]


def test_names_that_are_no_text_survive_their_file(tmp_path: Path) -> None:
    """A file's name may be in another encoding."""
    path, entry = tmp_path / "run.jsonl", replace(TRIAL, suite="caf\udce9")
    header = {"run": {"suites": ["caf\udce9"]}}
    ResultFile(path, header).append(entry)
    assert read_results(path) == ({"format": FORMAT, **header}, [entry])
    assert ResultFile(path, header, resume=True) == [entry]


def test_a_line_holds_nothing_that_is_not_known() -> None:
    record = Entry("s", "", "p", 0, 0, "plain", 3, tokens=1, seconds=1.0).to_json()
    assert not {"error", "output", "difference", "peak_bytes"} & record.keys()


def test_entries_are_on_the_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    path = tmp_path / "run.jsonl"
    file = ResultFile(path, HEADER)
    file.append(LEFT_OUT)
    assert (len(synced), len(lines_of(path))) == (2, 2)


# Going on with what was interrupted.


def test_resuming_after_any_byte_gives_the_undisturbed_file(
    undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: None)
    path = tmp_path / "run.jsonl"
    ends = [place + 1 for place, byte in enumerate(undisturbed) if byte == ord("\n")]

    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(undisturbed)))
    @example(1)
    def check(kept: int) -> None:
        path.write_bytes(undisturbed[:kept])
        killed.run(path, resume=True)
        assert path.read_bytes() == undisturbed

    for end in ends:
        for kept in (end - 1, end):
            path.write_bytes(undisturbed[:kept])
            killed.run(path, resume=True)
            assert path.read_bytes() == undisturbed
    check()


def test_a_file_cut_off_again_and_again_comes_to_its_end(
    undisturbed: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"

    class Killed(BaseException):
        pass

    for interrupted in range(100):
        left = [2]

        def on_trial(left: list[int] = left, before: int = 3 * interrupted) -> None:
            left[0] -= len(killed_lines(path)) > before
            if left[0] < 0:
                raise Killed

        try:
            killed.new_contest().run(ResultFile(path, HEADER, interrupted > 0), on_trial)
            break
        except Killed:
            with path.open("ab") as file:
                file.write(b'{"suite": "torn')
    assert interrupted > 5
    assert path.read_bytes() == undisturbed


def killed_lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def test_a_process_that_is_killed_loses_one_trial_at_most(
    undisturbed: bytes, tmp_path: Path
) -> None:
    moments = random.Random(time.time_ns())
    total = undisturbed.count(b"\n")
    paths = [tmp_path / f"{number}.jsonl" for number in range(2)]
    processes = [Forked(["tests.bench.killed", path]) for path in paths]
    for path, process in zip(paths, processes, strict=True):
        wanted = moments.randint(1, total - 3)
        while process.poll() is None and not (path.exists() and len(killed_lines(path)) >= wanted):
            time.sleep(0.001)
        time.sleep(moments.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        assert undisturbed.startswith(path.read_bytes().rpartition(b"\n")[0])
        killed.run(path, resume=True)
        assert path.read_bytes() == undisturbed


# What cannot be gone on with.


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("rest", [b"", b'{"torn'])
def test_results_that_are_there_are_not_touched(
    undisturbed: bytes, tmp_path: Path, rest: bytes
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(undisturbed + rest)
    message = refusal(lambda: ResultFile(path, HEADER))
    assert f"{path} already holds results" in message and "--resume" in message
    assert path.read_bytes() == undisturbed + rest


@pytest.mark.parametrize("content", [b"notes of mine", b"notes\nof mine\n", b"[1]\n", b"\xff\n"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_of_another_kind_is_not_touched(
    tmp_path: Path, content: bytes, resume: bool
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    assert str(path) in refusal(lambda: ResultFile(path, HEADER, resume))
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", {"name": "another", "fingerprint": "2"}),
        ("methods", ["plain", "pld"]),
        ("options", {"max_new_tokens": 9}),
        ("texts", "another digest"),
        ("new", 1),
    ],
)
def test_another_run_is_named(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "run.jsonl"
    run = {
        "model": {"name": "one", "fingerprint": "1"},
        "methods": ["plain"],
        "options": {"max_new_tokens": 8},
        "texts": "digest",
    }
    ResultFile(path, {"run": run}).append(LEFT_OUT)
    before = path.read_bytes()
    message = refusal(lambda: ResultFile(path, {"run": run | {name: value}}, resume=True))
    assert f"another {name} " in message and repr(value) in message
    assert path.read_bytes() == before
    # What else the header says may differ, and stays what it was.
    ResultFile(path, {"run": run, "command": "another"}, resume=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"suite": "torn', "line 2 is damaged"),
        (b"[1]", "line 2 is not a JSON object"),
        (b"{}", "line 2 is not the result of a trial"),
        (b'{"reason": "x"}', "line 2 is not the result of a trial"),
        (b'{"suite": "s", "stats": {}}', "line 2 is not the result of a trial"),
        (b'{"stats": 3}', "line 2 is not the result of a trial"),
        (b"[" * 100_000, "line 2 is damaged"),
        (line_of(seconds=0.0), r"line 2 is not the result of a trial (it has no tokens or no time"),
        (line_of(tokens=0), "line 2 is not the result of a trial (it has no tokens or no time"),
        (line_of(seconds="1"), "line 2 is not the result of a trial (seconds is '1'"),
        (line_of(seconds=math.inf), "line 2 is not the result of a trial (seconds is out of range"),
        (line_of(method="x:n=(5"), "line 2 is not the result of a trial (a bracket is not closed"),
        (line_of(prompt=["p"]), "line 2 is not the result of a trial (prompt is ['p']"),
        (line_of(peak_bytes="1"), "line 2 is not the result of a trial (peak_bytes is '1'"),
        (line_of(seconds=10**400), "line 2 is not the result of a trial (seconds is out of range"),
        (line_of(tokens=10**16), "line 2 is not the result of a trial (tokens is out of range"),
        (line_of(output=[10**400]), "line 2 is not the result of a trial (its tokens are out of"),
        (line_of(output=[-1]), "line 2 is not the result of a trial (its tokens are out of range"),
        (line_of(output=["1"]), "line 2 is not the result of a trial ("),
        (line_with(acceptance={"1": 10**30}), "line 2 is not the result of a trial (its counts"),
        (line_with(depths={"9" * 30: 1}), "line 2 is not the result of a trial (its counts are"),
        (line_with(rounds=None), "line 2 is not the result of a trial (rounds is None"),
        (line_with(acceptance={"1": "2"}), "line 2 is not the result of a trial ("),
        (
            line_with(seconds={"prefill": "1", "draft": 0, "target": 0, "commit": 0}),
            "line 2 is not the result of a trial (prefill_seconds is '1'",
        ),
        (
            line_with(sources={"anpd": {"rounds": "1"}}),
            "line 2 is not the result of a trial (rounds is '1'",
        ),
        (
            b'{"suite":1,"task":"","prompt":"","turn":0,"reason":""}',
            "line 2 is not the result of a trial (suite is 1",
        ),
    ],
)
def test_a_damaged_line_is_named(
    undisturbed: bytes, tmp_path: Path, line: bytes, expected: str
) -> None:
    path = tmp_path / "run.jsonl"
    first, _, rest = undisturbed.partition(b"\n")
    path.write_bytes(b"\n".join([first, line, rest]))
    for act in (lambda: read_results(path), lambda: ResultFile(path, HEADER, resume=True)):
        assert f"{path}, {expected}" in refusal(act)
    # Without the line it is what it was.
    path.write_bytes(undisturbed)
    killed.run(path, resume=True)
    assert path.read_bytes() == undisturbed


@pytest.mark.parametrize("first", [b'{"format":1,"run":{"ki', b"", b"[" * 100_000])
def test_a_damaged_first_line_is_not_to_be_deleted(
    undisturbed: bytes, tmp_path: Path, first: bytes
) -> None:
    """The others would be results of nobody knows what."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join([first, b"\x00\n", undisturbed.partition(b"\n")[2]]))
    for act in (lambda: read_results(path), lambda: ResultFile(path, HEADER, resume=True)):
        message = refusal(act)
        assert f"{path}: its first line does not describe a run of 'paceline bench'" in message
        assert "restore it from a copy, or name another file or folder" in message
        assert "delete" not in message


def test_a_mark_at_the_beginning_is_passed_over(undisturbed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(undisturbed)
    whole = read_results(path)
    path.write_bytes(b"\xef\xbb\xbf" + undisturbed)
    assert read_results(path) == whole
    killed.run(path, resume=True)
    assert path.read_bytes() == b"\xef\xbb\xbf" + undisturbed


def test_a_line_lost_in_the_middle_is_measured_again(undisturbed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = undisturbed.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4] + lines[5:]))
    killed.run(path, resume=True)
    assert path.read_bytes() == b"".join(lines[:4] + lines[5:] + lines[4:5])


def test_a_file_of_another_version_is_no_result_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"format": FORMAT + 1, **HEADER}) + "\n", encoding="utf-8")
    assert "not a result file of this version" in refusal(lambda: read_results(path))
    assert "not a result file of this version" in refusal(lambda: ResultFile(path, HEADER, True))
    path.write_text(json.dumps({"format": FORMAT, "run": None}) + "\n", encoding="utf-8")
    assert "not a result file of this version" in refusal(lambda: ResultFile(path, HEADER, True))


def test_reading_passes_over_a_torn_line(undisturbed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(undisturbed)
    whole = read_results(path)
    for torn in (b'{"suite', '{"prompt":"é'.encode()[:-1]):
        path.write_bytes(undisturbed + torn)
        assert read_results(path) == whole


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    assert "cannot read the results" in refusal(lambda: read_results(tmp_path / "missing"))
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    assert "not UTF-8" in refusal(lambda: read_results(tmp_path / "latin"))
    for path in (tmp_path, tmp_path / "latin" / "below"):
        assert "cannot write results to" in refusal(lambda path=path: ResultFile(path, HEADER))  # type: ignore[misc]


@pytest.mark.parametrize("written", [0, 7])
def test_a_full_disk_is_one_sentence_and_loses_nothing(
    undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    path = tmp_path / "run.jsonl"
    calls: list[int] = []

    def sync(number: int) -> None:
        calls.append(1)
        if len(calls) > 4:
            os.ftruncate(number, os.fstat(number).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", sync)
    message = refusal(lambda: killed.run(path))
    assert "No space left on device" in message and "--resume" in message
    monkeypatch.undo()
    monkeypatch.setattr(paceline.bench.memory, "peak_meter", lambda device: lambda: None)
    killed.run(path, resume=True)
    assert path.read_bytes() == undisturbed
