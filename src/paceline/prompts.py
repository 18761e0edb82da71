"""Prompts from JSONL files, and the handful that comes with the package."""

from __future__ import annotations

import errno
import gzip
import json
import zlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeGuard

from paceline.errors import UsageError

__all__ = ["PromptRecord", "demo_prompts", "read_prompts"]


@dataclass(frozen=True)
class PromptRecord:
    """One prompt.

    turns: messages of the user, in order; the model's own answers come in between. `raw` text is
    continued as it stands, without the chat template.
    licence, source: of the texts, in the file's own words; empty where it says nothing.
    """

    id: str
    turns: tuple[str, ...]
    task: str = ""
    raw: bool = False
    references: tuple[str, ...] = ()
    licence: str = ""
    source: str = ""


def read_prompts(path: Path, limit: int | None = None) -> list[PromptRecord]:
    """Read records with `turns` (messages of the user) or `prompt` (text to continue), and
    optionally `id` or `question_id`, `task` or `category`, `reference_documents`, `licence` and
    `source`.

    path: of a JSONL file, gzip or not.
    limit: at most this many records.

    Raises UsageError, naming file and line, where the file cannot be read or a record is malformed.
    """
    try:
        text = _unpacked(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read the prompt file {path}: {reason}") from error
    # Not `splitlines`, which also splits at characters that a JSON text may hold, such as U+2028.
    lines = [line for line in enumerate(text.split("\n"), start=1) if line[1].strip()]
    records = [_parse(line, f"{path}, line {number}") for number, line in lines[:limit]]
    if not records:
        raise UsageError(f"the prompt file {path} holds no records")
    return records


def demo_prompts() -> list[PromptRecord]:
    """An open question, a summary, a code edit, and an answer from documents."""
    text = files("paceline").joinpath("data/demo_prompts.jsonl").read_text(encoding="utf-8")
    return [_parse(line, "demo prompts") for line in text.splitlines()]


def _unpacked(path: Path) -> bytes:
    """What a file holds, behind gzip or not; OSError where it cannot be read."""
    content = path.read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(errno.EIO, "its gzip data is damaged") from error


def _parse(line: str, where: str) -> PromptRecord:
    try:
        record = json.loads(line)
        # JSON can spell what is no text, such as "\ud800".
        json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error).partition(";")[0]
        raise UsageError(f"{where} is not JSON ({reason}): write one record a line") from error
    if not isinstance(record, dict):
        raise UsageError(f'{where} is not a JSON object: write {{"turns": ["…"]}}')
    raw = "turns" not in record
    turns = [record.get("prompt")] if raw else record["turns"]
    if not (_texts(turns) and turns and all(turn.strip() for turn in turns)):
        raise UsageError(
            f'{where} needs "turns", a list of texts, or "prompt", a text, none of them empty'
        )
    references = record.get("reference_documents")
    references = [] if references is None else references
    if not _texts(references):
        raise UsageError(f'{where}: "reference_documents" must be a list of texts')
    return PromptRecord(
        id=_name(record, ("id", "question_id"), where.rpartition(" ")[2]),
        turns=tuple(turns),
        task=_name(record, ("task", "category"), ""),
        raw=raw,
        references=tuple(references),
        licence=_name(record, ("licence", "license"), ""),
        source=_name(record, ("source",), ""),
    )


def _texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _name(record: dict[str, Any], keys: tuple[str, ...], otherwise: str) -> str:
    """The first of the keys that is there, as text."""
    values = (record.get(key) for key in keys)
    return next((str(value) for value in values if value is not None), otherwise)
