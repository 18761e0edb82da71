"""Answer files in Spec-Bench's format: written from runs, read, compared by its formulas."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.entries import Entry
from paceline.bench.results import ResultFile
from paceline.bench.spec_bench import (
    Answer,
    Choice,
    answers_of,
    compare,
    read_answers,
    write_answers,
)
from paceline.errors import UsageError
from paceline.stats import Stats
from tests.cli.running import runner


def entry(method: str, prompt: str, turn: int, lengths: Sequence[int], **more: Any) -> Entry:
    values: dict[str, Any] = {"task": "writing", "repeat": 0, "seconds": 2.0, **more}
    return Entry(
        suite="spec_bench",
        prompt=prompt,
        turn=turn,
        method=method,
        prompt_tokens=3,
        tokens=sum(lengths),
        stats=Stats(
            rounds=len(lengths), tokens=sum(lengths), acceptance_histogram=Counter(lengths)
        ),
        **values,
    )


RUN = [
    entry("plain", "spec_bench/81", 0, [1, 1, 1], output=(107, 108, 109)),
    entry("plain", "spec_bench/81", 1, [1], output=(105,)),
    entry("anpd", "spec_bench/81", 1, [1], seconds=1.0),
    entry("anpd", "spec_bench/81", 0, [2, 1], seconds=1.0),
    entry("anpd", "spec_bench/81", 0, [3], seconds=0.5, repeat=1, output=(107, 108, 106)),
    entry("anpd", "spec_bench/81", 1, [1], seconds=0.5, repeat=1),
    entry("plain", "other", 0, [1], task="rag", output=(104,)),
    entry("anpd", "other", 0, [], task="rag", error="it broke"),
]


def test_questions_of_mt_bench_have_their_categories() -> None:
    asked = {number: f"mt_bench/{number}" for number in (81, 90, 91, 160, 161)}
    run = [
        entry("plain", prompt, 0, [1], output=(107,), task="multi_turn")
        for prompt in asked.values()
    ]
    found = {answer.question_id: answer for answer in answers_of(run, "plain", "m", words)}
    assert [found[number].category for number in asked] == [
        *("writing", "writing", "roleplay", "humanities", "multi_turn"),
    ]
    assert found[160].task == "mt_bench"
    other = replace(run[0], suite="mtbench101", prompt="mtbench101/85")
    assert [each.category for each in answers_of([other], "plain", "m", words)] == ["multi_turn"]


def words(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def test_a_run_becomes_answers() -> None:
    (answer,) = answers_of(RUN, "anpd", "m-anpd", words)
    assert (answer.question_id, answer.category, answer.model_id) == (81, "writing", "m-anpd")
    assert answer.choices == [
        Choice(0, ["107 108 109", "105"], [2, 1], [3, 1], [1.0, 1.0], [1, 1, 2]),
        Choice(1, ["107 108 106", "105"], [1, 1], [3, 1], [0.5, 0.5], [1, 3]),
    ]
    assert [a.question_id for a in answers_of(RUN, "plain", "m", words)] == [81, "other"]


def test_half_a_conversation_is_no_answer() -> None:
    """An interrupted run lacks the turns that were still to come."""
    found = answers_of([each for each in RUN if each != RUN[5]], "anpd", "m", words)
    assert [[choice.index for choice in answer.choices] for answer in found] == [[0]]
    begun = [RUN[0], RUN[1], RUN[3], *RUN[6:7]]
    assert list(answers_of(begun, "anpd", "m", words)) == []
    assert [a.question_id for a in answers_of(begun, "plain", "m", words)] == [81, "other"]
    again = [*RUN[:2], replace(RUN[0], repeat=1)]
    (answer,) = answers_of(again, "plain", "m", words)
    assert [choice.index for choice in answer.choices] == [0]


def test_names_that_are_no_text_are_written_as_they_were(tmp_path: Path) -> None:
    (answer,) = answers_of([replace(RUN[6], task="\ud800")], "plain", "m", words)
    write_answers(tmp_path / "a.jsonl", [answer])
    assert read_answers(tmp_path / "a.jsonl") == [answer]


def test_questions_of_several_suites_stay_apart() -> None:
    run = [
        replace(entry(method, prompt, 0, [1], output=(1,)), suite=suite)
        for method in ("plain", "anpd")
        for suite, prompt in (("gsm8k", "gsm8k/1"), ("math500", "math500/1"), ("mine", "2"))
    ]
    for lines in (run, run[:-2]):  # an interrupted run has the same names
        found = [a.question_id for a in answers_of(lines, "anpd", "m", words)]
        assert found == ["gsm8k/1", "math500/1", 2][: len(found)]


def test_without_plain_decodings_text_there_is_no_answer() -> None:
    with pytest.raises(UsageError, match="lack plain decoding's first trial on spec_bench/81"):
        list(answers_of(RUN[1:], "anpd", "m", words))
    again = replace(RUN[0], repeat=1, output=None)
    with pytest.raises(UsageError, match="repeat the run's command with --resume"):
        list(answers_of([again], "plain", "m", words))


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    answers = list(answers_of(RUN, "plain", "m", words))
    write_answers(tmp_path / "a.jsonl", answers)
    assert read_answers(tmp_path / "a.jsonl") == answers
    content = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + content)  # as editors may
    assert read_answers(tmp_path / "marked.jsonl") == answers
    record = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    # What Spec-Bench's own files have, no more and no less.
    assert set(record) == {
        *("question_id", "category", "answer_id", "model_id", "choices", "tstamp")
    }
    assert set(record["choices"][0]) == {
        *("index", "turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths")
    }


def answer(question: int, category: str, tokens: int, seconds: float, lengths: list[int]) -> Answer:
    choice = Choice(0, ["text"], [len(lengths)], [tokens], [seconds], lengths)
    return Answer(question, category, "m", [choice])


def test_speeds_are_means_over_questions_as_in_spec_bench() -> None:
    base = [answer(81, "writing", 10, 1.0, [1]), answer(301, "qa", 30, 1.0, [1])]
    other = [
        answer(81, "writing", 20, 1.0, [2, 2]),
        answer(301, "qa", 30, 0.5, [3]),
        answer(999, "qa", 1, 1.0, [1]),  # the baseline has not answered that
    ]
    rows = {row.task: row for row in compare(base, other)}
    assert list(rows) == ["mt_bench", "qa", "overall"]
    assert rows["mt_bench"].speedup == 2.0
    assert rows["qa"].speedup == 2.0
    whole = rows["overall"]
    assert (whole.questions, whole.same_texts) == (2, 2)
    assert whole.tokens_per_second == (20 + 60) / 2
    assert whole.speedup == (20 + 60) / (10 + 30)
    assert whole.mean_accepted == (2 + 2 + 3) / 3
    with pytest.raises(UsageError, match="answers to qa hold no tokens"):
        compare([answer(301, "qa", 0, 1.0, [])], other)
    with pytest.raises(UsageError, match="no question in common"):
        compare(base, other[2:])


def test_lengths_that_a_file_does_not_know_are_not_shown_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / name for name in ("known.jsonl", "unknown.jsonl")]
    for path, lengths in zip(paths, ([1], [])):
        write_answers(path, [answer(301, "qa", 30, 1.0, lengths)])
    shown = runner(monkeypatch, capsys)("bench", "spec-bench", "show", *paths)
    assert shown.code == 0 and "0.00" not in shown.out


def line_with(**changes: object) -> str:
    """An answer with one choice, of which something is different."""
    choice: dict[str, object] = {
        "index": 0,
        "turns": ["x"],
        "decoding_steps": [1],
        "new_tokens": [1],
        "wall_time": [1.0],
        "accept_lengths": [1],
    }
    record = {"question_id": 1, "category": "qa", "model_id": "m", "choices": [choice | changes]}
    return json.dumps(record)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "holds no answers"),
        (line_with(new_tokens=[10**400]), "line 1 .* out of range"),
        (line_with(new_tokens=[10**400, -(10**400)]), "line 1 .* out of range"),
        (line_with(wall_time=[10**400]), "line 1 .* out of range"),
        (line_with(accept_lengths=[10**16]), "line 1 .* out of range"),
        (line_with(wall_time=["1"]), "line 1"),
        ("{", "line 1 is not an answer in Spec-Bench's format"),
        ('{"question_id": 1, "category": "qa", "model_id": "m", "choices": []}', "line 1"),
        ("[1]", "line 1"),
        ("[" * 100_000, "line 1"),
        (
            '{"question_id": [1], "category": "qa", "model_id": "m", "choices": [{"index": 0, '
            '"turns": [], "decoding_steps": [], "new_tokens": [1], "wall_time": [1], '
            '"accept_lengths": []}]}',
            "line 1",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(UsageError, match=reason):
        read_answers(tmp_path / "a.jsonl")


@pytest.mark.parametrize("run", [{}, {"model": None}, {"model": {}}, {"model": {"name": 1}}])
def test_a_file_that_names_no_model_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: dict[str, Any],
) -> None:
    results = ResultFile(tmp_path / "run.jsonl", {"run": {"kind": "run", **run}})
    results.append(RUN[0])
    words = ("bench", "spec-bench", "export", results.path, "--out", tmp_path)
    refused = runner(monkeypatch, capsys)(*words)
    assert (refused.code, "does not name the model" in refused.said) == (2, True)


@pytest.mark.model
def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = runner(monkeypatch, capsys)
    header = {"run": {"kind": "run", "model": {"name": "smollm2-135m"}}}
    results = ResultFile(tmp_path / "run.jsonl", header)
    long = [f"ppd:parts={'x' * 200}/{name}" for name in "ab"]
    for line in [*RUN, *(entry(name, "other", 0, [1], output=(104,)) for name in long)]:
        results.append(line)
    written = command("bench", "spec-bench", "export", results.path, "--out", tmp_path)
    paths = list(map(Path, written.out.split()))
    assert (written.code, len({*paths})) == (0, 4)
    assert [path.stem for path in paths[:2]] == ["smollm2-135m-plain", "smollm2-135m-anpd"]
    assert read_answers(paths[0])[0].choices[0].turns[0]
    shown = command("bench", "spec-bench", "show", *paths)
    assert shown.code == 0
    assert "mt_bench" in shown.out and "2.00x" in shown.out
    refused = command("bench", "spec-bench", "show", paths[0], tmp_path / "missing.jsonl")
    assert (refused.code, "cannot read the answers" in refused.said) == (2, True)
    refused = command("bench", "spec-bench", "export", paths[0], "--out", tmp_path)
    assert (refused.code, "is not a result file" in refused.said) == (2, True)
