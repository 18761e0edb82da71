"""Measure the gain of `auto` in a session that answers related questions in order.

    python benchmarks/related_questions.py --data DIR --out related.jsonl

Questions are turns of dialogues about the same document. The dialogues of a file are sorted by how
many of them share their longest reference document, the most shared first, otherwise in file order,
until there are --questions turns. Each way of writing has its own session, which answers all
questions in order; the ways take turns at every question. "auto, datastore" adds its answers to a
datastore, which is empty at first; `auto` remembers answers as long as its session lives.

Every answer is a line of the --out file. A repeated command continues after the last question that
all ways have answered. What sessions had learned is lost then, except for the datastore's texts;
`began` in a line is the question at which its session began.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from rich.table import Table

import paceline
from paceline.machine import describe_run
from paceline.prompts import PromptRecord, read_prompts
from paceline.session import Message, Session
from tables import new_table, number, show, shown_command

PLAIN = "plain"
METHODS = {PLAIN: "plain", "auto": "auto", "auto, datastore": "auto"}
STEP = 10


def related(records: Sequence[PromptRecord], questions: int) -> Iterator[tuple[int, PromptRecord]]:
    """Turn and dialogue of each question; see the module's docstring."""

    def document(record: PromptRecord) -> str:
        return max(record.references, key=len, default="")

    shared = Counter(map(document, records))
    first = {document(record): place for place, record in reversed([*enumerate(records)])}
    chosen = sorted(records, key=lambda one: (-shared[document(one)], first[document(one)]))
    turns = [(turn, record) for record in chosen for turn in range(len(record.turns))]
    yield from turns[:questions]


def sessions(model: str, folder: str) -> dict[str, Session]:
    """One session per way of writing, each with its own model, so that they share no cache."""
    return {
        name: paceline.load(model, method=method, datastore=folder if "datastore" in name else None)
        for name, method in METHODS.items()
    }


def conversation(
    record: PromptRecord, turn: int, answers: dict[tuple[str, int], str]
) -> list[Message]:
    """The dialogue up to the question, with the answers given so far."""
    messages: list[Message] = []
    for place, text in enumerate(record.turns[: turn + 1]):
        messages.append({"role": "user", "content": text})
        if place < turn:
            messages.append({"role": "assistant", "content": answers[record.id, place]})
    return messages


def answer(session: Session, messages: Sequence[Message], tokens: int) -> dict[str, Any]:
    """Answer one question; return the result as JSON values."""
    began = perf_counter()
    found = session.chat(messages, max_new_tokens=tokens)
    seconds, stats = perf_counter() - began, found.stats
    return {
        "seconds": round(seconds, 5),
        "prompt_seconds": round(stats.prefill_seconds, 5),
        "rounds": stats.rounds,
        "gained": {name: did.gained for name, did in stats.sources.items()},
        "source_seconds": {name: round(did.seconds, 5) for name, did in stats.sources.items()},
        "tokens": list(found.tokens),
        "text": found.text,
    }


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Headers of earlier runs, and answers to questions that all ways have answered."""
    if not path.exists():
        return [], []
    written = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    lines = [line for line in written if "way" in line]
    whole = Counter(line["question"] for line in lines)
    return (
        [line for line in written if "way" not in line],
        [line for line in lines if whole[line["question"]] == len(METHODS)],
    )


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Answer the remaining questions; return all lines."""
    headers, lines = read_lines(options.out)
    questions = list(related(read_prompts(options.data / options.file), options.questions))
    began = 1 + max((line["question"] for line in lines), default=-1)
    if began == len(questions):
        return lines
    with TemporaryDirectory() as folder, options.out.open("w", encoding="utf-8") as file:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()

        open_sessions = sessions(options.model, folder)
        answers: dict[tuple[str, int], str] = {}
        for line in (*headers, _header(options, open_sessions[PLAIN], began), *lines):
            write(line)
        for line in lines:
            answers[line["dialogue"], line["turn"]] = line["text"]
            if "datastore" in line["way"]:
                open_sessions[line["way"]].record([], line["tokens"])
        for place, (turn, record) in enumerate(questions[began:], began):
            messages = conversation(record, turn, answers)
            names = list(METHODS)
            for name in names[place % len(names) :] + names[: place % len(names)]:
                what = {"question": place, "dialogue": record.id, "turn": turn, "began": began}
                found = answer(open_sessions[name], messages, options.tokens)
                lines.append({"way": name, **what, **found})
                answers[record.id, turn] = found["text"]
                write(lines[-1])
    return lines


def _header(options: argparse.Namespace, session: Session, began: int) -> dict[str, Any]:
    return {
        **describe_run(),
        "command": shown_command(),
        "model": {"name": options.model, "fingerprint": session.fingerprint},
        "file": options.file,
        "max_new_tokens": options.tokens,
        "began": began,
    }


def table(lines: Sequence[dict[str, Any]]) -> Table:
    """Speed-ups over plain decoding by tens of questions."""
    ways = [name for name in METHODS if name != PLAIN]
    heads = [f"{name}{part}" for name in ways for part in ("", ", after the prompt")]
    shown = new_table("speed-up over plain decoding", "questions", *heads, "tokens", "same texts")
    last = 1 + max(line["question"] for line in lines)
    spans = [(first, min(first + STEP, last)) for first in range(0, last, STEP)]
    for first, end in (*spans, (0, last)):
        some = [line for line in lines if first <= line["question"] < end]
        plain = [line for line in some if line["way"] == PLAIN]
        cells = []
        for name in ways:
            own = [line for line in some if line["way"] == name]
            for after in (False, True):
                cells.append(number(_seconds(plain, after) / _seconds(own, after), "x"))
        texts = {(line["question"], *line["tokens"]) for line in some}
        same = "yes" if len(texts) == len(plain) else "no"
        tokens = sum(len(line["tokens"]) for line in plain)
        shown.add_row(f"{first + 1} to {end}", *cells, str(tokens), same)
    return shown


def _seconds(lines: Sequence[dict[str, Any]], after: bool) -> float:
    return sum(line["seconds"] - after * line["prompt_seconds"] for line in lines)


def main() -> None:
    """Read the arguments, ask, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of prompts")
    parser.add_argument("--file", default="mteval_refine.jsonl", help="whose dialogues are taken")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, help="of the CPU; default: torch's choice")
    parser.add_argument("--out", type=Path, required=True, help="written to, and gone on with")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    show(table(run(options)))


if __name__ == "__main__":
    main()
