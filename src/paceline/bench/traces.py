"""Trace files: recorded model outputs with their prompts.

JSONL records of either shape, with optional `id`, `prompt_id`, `task` and `reference_documents`:

    {"turns": ["a question", "another"], "outputs": ["an answer", "another"]}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": null,
                  "tool_calls": […]}, {"role": "tool", "content": "…"}, …]}

Suites whose `reference` was written by a model, and which say so by `reference_is`, are traces too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.bench.simulate import ASSISTANT, Recording, TraceRecord
from paceline.bench.suites import find_files, suite_of
from paceline.errors import UsageError
from paceline.prompts import are_texts, particulars, read_records


def read_traces(
    names: Sequence[str],
    folder: Path | None,
    limit: int | None = None,
    answers: int = 0,
    system: str | None = None,
) -> list[Recording]:
    """Read the recordings of trace files, named as suites are (see `read_suites`).

    limit: most recordings per file, evenly spaced through it, because neighbours often record the
    same prompt.
    answers: most other recordings of the same prompt in the same file that become references, like
    cached answers to similar queries.
    system: replaces system messages, for trajectories recorded without theirs.

    Raises UsageError for an unknown name, and for a file that is missing, malformed or empty.
    """
    found = []
    for path in find_files(names, folder):
        records = _with_answers(read_trace(path, system), answers)
        count = min(limit or len(records), len(records))
        chosen = (records[place * len(records) // count] for place in range(count))
        found += [Recording(suite_of(path), record) for record in chosen]
    return found


def read_trace(path: Path, system: str | None = None) -> list[TraceRecord]:
    """Read all records of a file. Raises UsageError, naming file and line, for a malformed one."""
    return [_record(record, where, system) for where, record in read_records(path, "trace file")]


def _with_answers(records: Sequence[TraceRecord], answers: int) -> list[TraceRecord]:
    same: dict[str, list[TraceRecord]] = defaultdict(list)
    for record in records:
        same[record.prompt].append(record)
    found = []
    for record in records:
        others = [other for other in same[record.prompt] if other is not record][:answers]
        texts = ["\n\n".join(other.outputs) for other in others]
        found.append(replace(record, references=(*record.references, *texts)))
    return found


def _record(record: dict[str, Any], where: str, system: str | None) -> TraceRecord:
    messages = (
        [_message(message, where, system) for message in _trajectory(record, where)]
        if "messages" in record
        else _exchanges(record, where)
    )
    fields = particulars(record, where)
    prompt = record.get("prompt_id")
    return TraceRecord(
        messages=tuple(messages), prompt=fields["id"] if prompt is None else str(prompt), **fields
    )


def _exchanges(record: dict[str, Any], where: str) -> list[tuple[str, str]]:
    turns, outputs = record.get("turns"), record.get("outputs")
    if outputs is None and "reference_is" in record:
        reference = record.get("reference")
        outputs = [reference] if isinstance(reference, str) else reference
    if not (are_texts(turns) and are_texts(outputs) and turns and len(turns) == len(outputs)):
        raise UsageError(
            f'{where} needs "turns" and "outputs", two lists of equally many texts, or "messages"'
        )
    if not all(text.strip() for text in (*turns, *outputs)):
        raise UsageError(f"{where} has an empty text among its turns or outputs")
    return [
        message
        for turn, output in zip(turns, outputs)
        for message in (("user", turn), (ASSISTANT, output))
    ]


def _trajectory(record: dict[str, Any], where: str) -> list[dict[str, Any]]:
    messages = record["messages"]
    if not (isinstance(messages, list) and all(isinstance(each, dict) for each in messages)):
        raise UsageError(f'{where}: "messages" must be a list of objects with role and content')
    roles = [message.get("role") for message in messages]
    if not roles or roles[0] == ASSISTANT or ASSISTANT not in roles:
        raise UsageError(
            f'{where}: "messages" must hold one of the "{ASSISTANT}" after one of another role'
        )
    return messages


def _message(message: dict[str, Any], where: str, system: str | None) -> tuple[str, str]:
    """Role and text. Tool calls are taken to be written as JSON."""
    role, content, calls = (message.get(name) for name in ("role", "content", "tool_calls"))
    parts = [content] if content else []
    if calls:
        parts.append(json.dumps(calls, ensure_ascii=False))
    if not (isinstance(role, str) and are_texts(parts)):
        raise UsageError(f"{where} has a message without a role, or whose content is not text")
    text = system if role == "system" and system is not None else "\n".join(parts)
    if role == ASSISTANT and not text.strip():
        raise UsageError(f"{where} has an empty {ASSISTANT} message")
    return role, text
