"""Prompts from JSONL files, and a handful that come with the package."""

from __future__ import annotations

import errno
import gzip
import json
import zlib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeGuard

from paceline.errors import UsageError, readable
from paceline.messages import Message


@dataclass(frozen=True)
class PromptRecord:
    """One prompt.

    turns: the user's messages, in order; the model's own answers come in between. `raw` text is
    continued as it is, without the chat template.
    licence, source: of the texts, in the file's own words; empty if it says nothing.
    where: it was read, for messages: "FILE, line 3".
    """

    id: str
    turns: tuple[str, ...]
    task: str = ""
    raw: bool = False
    references: tuple[str, ...] = ()
    licence: str = ""
    source: str = ""
    where: str = field(default="", compare=False)


@dataclass
class Conversation:
    """A prompt, turn by turn, with the model's answers in between.

    template: the model's chat template; without one, every prompt is raw. Raw turns are one text.
    said: the turns that have been answered, and the answers.
    """

    record: PromptRecord
    template: str | None
    said: list[Message] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.raw = self.record.raw or not self.template
        self.turns = ("\n\n".join(self.record.turns),) if self.raw else self.record.turns

    @property
    def ended(self) -> bool:
        """Whether every turn has been answered."""
        return len(self.said) == 2 * len(self.turns)

    def ask(self) -> str | list[Message]:
        """The text to continue, or everything said up to the next turn."""
        text = self.turns[len(self.said) // 2]
        return text if self.raw else [*self.said, {"role": "user", "content": text}]

    def take(self, answer: str) -> None:
        """Add the answer to that."""
        text = self.turns[len(self.said) // 2]
        self.said += {"role": "user", "content": text}, {"role": "assistant", "content": answer}


def read_prompts(
    path: Path, limit: int | None = None, by_category: bool = False
) -> list[PromptRecord]:
    """Read records with `turns` (the user's messages) or `prompt` (text to continue), and
    optionally `id` or `question_id`, `task` or `category`, `reference_documents`, `licence` and
    `source`.

    path: a JSONL file, gzipped or not.
    limit: at most this many records.
    by_category: if a record has both, `category` is the task.

    Raises UsageError, naming file and line, if the file cannot be read or a record is malformed.
    """
    records = read_records(path, "prompt file", limit)
    return [_prompt(record, where, by_category) for where, record in records]


def read_records(
    path: Path, kind: str, limit: int | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """The JSON objects of a file, one per line, each with its location ("FILE, line 3").

    kind: what error messages call the file.

    Raises UsageError for a file that cannot be read or has no records, and, naming the line, for a
    record that is not a JSON object.
    """
    with readable(f"the {kind} {path}"):
        text = _unpacked(path).decode("utf-8-sig")
    # Not `splitlines`, which also splits at characters that a JSON text may hold, such as U+2028.
    lines = [line for line in enumerate(text.split("\n"), start=1) if line[1].strip()]
    places = [(f"{path}, line {number}", line) for number, line in lines[:limit]]
    if not places:
        raise UsageError(f"the {kind} {path} holds no records")
    return [(where, _parse(line, where)) for where, line in places]


def demo_prompts() -> list[PromptRecord]:
    """An open question, a summary, a code edit, and an answer from documents."""
    text = files("paceline").joinpath("data/demo_prompts.jsonl").read_text(encoding="utf-8")
    return [_prompt(_parse(line, "demo prompts"), "demo prompts") for line in text.splitlines()]


def _unpacked(path: Path) -> bytes:
    """The content of a file, gunzipped if need be; raises OSError if it cannot be read."""
    content = path.read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(errno.EIO, "its gzip data is damaged") from error


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        # JSON can spell strings that are not text, such as "\ud800".
        json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error).partition(";")[0]
        raise UsageError(f"{where} is not JSON ({reason}): write one record per line") from error
    if not isinstance(record, dict):
        raise UsageError(f'{where} is not a JSON object: write {{"turns": ["…"]}}')
    return record


def _prompt(record: dict[str, Any], where: str, by_category: bool = False) -> PromptRecord:
    raw = "turns" not in record
    turns = [record.get("prompt")] if raw else record["turns"]
    if not (are_texts(turns) and turns and all(turn.strip() for turn in turns)):
        raise UsageError(
            f'{where} needs "turns", a list of texts, or "prompt", a text, none of them empty'
        )
    return PromptRecord(
        turns=tuple(turns),
        raw=raw,
        licence=_name(record, ("licence", "license"), ""),
        source=_name(record, ("source",), ""),
        where=where,
        **particulars(record, where, by_category),
    )


def particulars(record: dict[str, Any], where: str, by_category: bool = False) -> dict[str, Any]:
    """`id` (else the line's number), `task` and `references` of a record of any kind.

    by_category: see `read_prompts`.

    Raises UsageError if the references are not texts.
    """
    references = record.get("reference_documents")
    references = [] if references is None else references
    if not are_texts(references):
        raise UsageError(f'{where}: "reference_documents" must be a list of texts')
    return {
        "id": _name(record, ("id", "question_id"), where.rpartition(" ")[2]),
        "task": _name(record, ("category", "task") if by_category else ("task", "category"), ""),
        "references": tuple(references),
    }


def are_texts(value: Any) -> TypeGuard[list[str]]:
    """Whether this is a list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _name(record: dict[str, Any], keys: tuple[str, ...], otherwise: str) -> str:
    """The value of the first of `keys` that is present, as text."""
    values = (record.get(key) for key in keys)
    return next((str(value) for value in values if value is not None), otherwise)
