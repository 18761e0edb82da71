"""Spec-Bench's answer files: export our runs, and compare any of them as Spec-Bench does.

Its scripts and published runs: https://github.com/hemingkx/Spec-Bench (Xia et al. 2024, arXiv
2401.07851), `evaluation/eval.py` and `evaluation/speed.py`.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any
from uuid import uuid4

from paceline.bench.entries import MOST, Entry
from paceline.bench.suites import MT_BENCH, MULTI_TURN, WITH_MT_BENCH
from paceline.bench.trial import PLAIN
from paceline.errors import UsageError, readable
from paceline.json_files import parse_json

Decode = Callable[[Sequence[int]], str]

OVERALL = "overall"
_FIRST, _EACH = 81, 10  # MT-bench's first question, and questions per category


@dataclass(frozen=True)
class Choice:
    """All turns of one question, answered once.

    index: of the repeat, from 0. turns: answers. decoding_steps, new_tokens, wall_time (seconds):
    by turn. accept_lengths: tokens per round, over all turns; paceline keeps only how often each
    length occurred, so ours are sorted.
    """

    index: int
    turns: list[str]
    decoding_steps: list[int]
    new_tokens: list[int]
    wall_time: list[float]
    accept_lengths: list[int]

    @property
    def tokens_per_second(self) -> float:
        """Over all turns."""
        return sum(self.new_tokens) / sum(self.wall_time)


@dataclass(frozen=True)
class Answer:
    """A line of an answer file: one question's answers by one model and method."""

    question_id: int | str
    category: str
    model_id: str
    choices: list[Choice]

    @property
    def task(self) -> str:
        """Spec-Bench's grouping: MT-bench's eight categories are one task."""
        return "mt_bench" if self.category in MT_BENCH else self.category


@dataclass(frozen=True)
class Row:
    """A task of one answer file, compared with a baseline's; see `compare`.

    mean_accepted: None if the file does not know: other software does not report it.
    """

    task: str
    questions: int
    same_texts: int
    mean_accepted: float | None
    tokens_per_second: float
    speedup: float


def answers_of(
    entries: Sequence[Entry], method: str, model_id: str, decode: Decode
) -> Iterator[Answer]:
    """Yield the answers of one method of a run, without the questions on which it failed, and
    without repeats that lack a turn which plain decoding has: the run was interrupted there.

    Raises UsageError for an answer whose text cannot be known.
    """
    plain = {e.key: e.output for e in entries if e.method == PLAIN and e.repeat == 0}
    questions: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: (entry.repeat, entry.turn)):
        questions[entry.suite, entry.prompt].append(entry)
    numbered = Counter(_question(prompt) for _, prompt in questions)
    for (suite, prompt), trials in questions.items():
        known = {trial.turn for trial in trials if trial.method == PLAIN}
        own = [trial for trial in trials if trial.method == method]
        begun = {repeat: [*turns] for repeat, turns in groupby(own, lambda trial: trial.repeat)}
        choices = [
            _choice(repeat, turns, plain, decode)
            for repeat, turns in begun.items()
            if known <= {turn.turn for turn in turns} and not any(turn.error for turn in own)
        ]
        question = _question(prompt)
        if numbered[question] > 1:  # each of several suites begins with 0
            question = f"{suite}/{prompt.removeprefix(f'{suite}/')}"
        if choices:
            yield Answer(question, _category(own[0]), model_id, choices)


def _category(entry: Entry) -> str:
    """Spec-Bench's name of a task: of MT-bench's questions, which begin with 81, ten in a row have
    a category."""
    number = _question(entry.prompt)
    known = isinstance(number, int) and _FIRST <= number < _FIRST + _EACH * len(MT_BENCH)
    if entry.suite not in WITH_MT_BENCH or entry.task != MULTI_TURN or not known:
        return entry.task
    return MT_BENCH[(int(number) - _FIRST) // _EACH]


def _question(prompt: str) -> int | str:
    """The id without the name of the set: "spec_bench/81"  ->  81"""
    last = prompt.rpartition("/")[2]
    return int(last) if last.isdecimal() else prompt


def _choice(
    index: int, turns: Sequence[Entry], plain: dict[Any, tuple[int, ...] | None], decode: Decode
) -> Choice:
    # An entry holds its tokens only if they differ from plain decoding's.
    outputs = [turn.output or plain.get(turn.key) for turn in turns]
    if not all(outputs):
        raise UsageError(
            f"the results lack plain decoding's first trial on {turns[0].prompt}, which holds the "
            "text: repeat the run's command with --resume"
        )
    lengths = [turn.stats.acceptance_histogram for turn in turns]
    return Choice(
        index=index,
        turns=[decode(output or ()) for output in outputs],
        decoding_steps=[turn.stats.rounds for turn in turns],
        new_tokens=[turn.tokens for turn in turns],
        wall_time=[turn.seconds for turn in turns],
        accept_lengths=sorted(length for counts in lengths for length in counts.elements()),
    )


def write_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Write an answer file, replacing an existing one. Raises OSError."""
    stamp = {"tstamp": time.time()}
    records = [{**asdict(answer), "answer_id": uuid4().hex, **stamp} for answer in answers]
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    # Names may be no text; written so, JSON still reads them as they were.
    path.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


def read_answers(path: Path) -> list[Answer]:
    """Read the answers of a file; if a question occurs twice, the last one counts.

    Raises UsageError, naming the line, if the file cannot be read or has another format.
    """
    with readable(f"the answers {path}"):
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    answers: dict[int | str, Answer] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            answer = _parsed(line, f"{path}, line {number}")
            answers[answer.question_id] = answer
    if not answers:
        raise UsageError(f"{path} holds no answers")
    return list(answers.values())


def _parsed(line: str, where: str) -> Answer:
    try:
        record = parse_json(line)
        choices = [
            Choice(**{name: choice[name] for name in Choice.__dataclass_fields__})
            for choice in record["choices"]
        ]
        answer = Answer(
            record["question_id"], str(record["category"]), str(record["model_id"]), choices
        )
        first = choices[0]  # the only one that is compared
        numbers = [*first.new_tokens, *first.accept_lengths, *first.wall_time]
        if not (all(0 <= each <= MOST for each in numbers) and sum(first.wall_time) > 0):
            raise ValueError("its times or counts are out of range")
        hash(answer.question_id)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{where} is not an answer in Spec-Bench's format ({error})") from error
    return answer


def compare(base: Sequence[Answer], other: Sequence[Answer]) -> list[Row]:
    """One row per task, over the questions that both answered, then one over all.

    Counts as `evaluation/speed.py` does: only the first choice of each question; a speed is the
    mean over questions of tokens per second, the speed-up a ratio of two such means. Unlike there,
    the baseline's token counts come from its file; its texts are not tokenized again.

    Raises UsageError if they have no question in common, or if the baseline wrote nothing.
    """
    known = {answer.question_id: answer for answer in base}
    pairs = [(known[a.question_id], a) for a in other if a.question_id in known]
    if not pairs:
        raise UsageError("the two answer files have no question in common")
    tasks: dict[str, list[tuple[Answer, Answer]]] = defaultdict(list)
    for pair in pairs:
        tasks[pair[1].task].append(pair)
    return [_row(task, found) for task, found in (*tasks.items(), (OVERALL, pairs))]


def _row(task: str, pairs: Sequence[tuple[Answer, Answer]]) -> Row:
    ours = [other.choices[0] for _, other in pairs]
    theirs = [base.choices[0] for base, _ in pairs]
    lengths = [length for choice in ours for length in choice.accept_lengths]
    speed = mean(choice.tokens_per_second for choice in ours)
    slow = mean(choice.tokens_per_second for choice in theirs)
    if not slow:
        raise UsageError(f"the baseline's answers to {task} hold no tokens: name another file")
    return Row(
        task=task,
        questions=len(pairs),
        same_texts=sum(a.turns == b.turns for a, b in zip(ours, theirs)),
        mean_accepted=mean(lengths) if lengths else None,
        tokens_per_second=speed,
        speedup=speed / slow,
    )
