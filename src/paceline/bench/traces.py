"""Recorded outputs of stronger models, which methods are forced to follow (Yang et al. 2023, arXiv
2304.04487, section 3.2 and Algorithm 2).

Every pass really runs on the target, with the method's drafts, and every draw is really made; but
the recorded token replaces the drawn one. So acceptance is that of the recorded text and cost that
of the target, whatever the target itself would have written.

Trace files are JSONL records of either shape, with optional `id`, `prompt_id`, `task` and
`reference_documents`:

    {"turns": ["a question", "another"], "outputs": ["an answer", "another"]}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": null,
                  "tool_calls": […]}, {"role": "tool", "content": "…"}, …]}

Suites whose `reference` was written by a model, and which say so by `reference_is`, are traces too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.bench.suites import find_files, suite_of
from paceline.bench.trial import Answers, Request
from paceline.errors import UsageError
from paceline.options import Options
from paceline.prompts import are_texts, particulars, read_records
from paceline.session import Session

ASSISTANT = "assistant"


@dataclass(frozen=True)
class TraceRecord:
    """A recorded conversation.

    messages: role and content, in order; each one of the assistant is an output, forced given all
    messages before it.
    prompt: an id that recordings of the same prompt share.
    references: texts the outputs may resemble.
    """

    id: str
    messages: tuple[tuple[str, str], ...]
    prompt: str
    task: str = ""
    references: tuple[str, ...] = ()

    @property
    def outputs(self) -> list[str]:
        """The recorded model's messages, in order."""
        return [content for role, content in self.messages if role == ASSISTANT]


@dataclass(frozen=True)
class Recording:
    """A recorded conversation to run; its suite is the file it comes from."""

    suite: str
    record: TraceRecord

    @property
    def group(self) -> str:
        """See `Entry`."""
        return self.record.prompt

    def turns(self, session: Session) -> int:
        """One per output."""
        return len(self.record.outputs)

    def requests(self, session: Session, options: Options, answers: Answers) -> Iterator[Request]:
        """Yield one request per output, made lazily; recorded outputs stand between turns."""
        references = session.encode_references(self.record.references)
        for place, (role, content) in enumerate(self.record.messages):
            if role == ASSISTANT:
                (recorded,) = session.encode_references([content])
                length = min(len(recorded), options.max_new_tokens)
                yield Request(
                    _prompt(session, self.record.messages[:place]),
                    references,
                    replace(options, max_new_tokens=length, ignore_eos=True),
                    recorded[:length],
                )


def _prompt(session: Session, messages: Sequence[tuple[str, str]]) -> list[int]:
    """Apply the model's chat template; without one, join the messages into one text to continue."""
    if session.tokenizer.chat_template:
        return session.encode([{"role": role, "content": content} for role, content in messages])
    return session.encode("\n\n".join(content for _, content in messages) + "\n\n")


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
