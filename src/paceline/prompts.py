"""Prompts from JSONL files, and the handful that comes with the package."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from paceline.comparison import PromptRecord
from paceline.errors import UsageError

__all__ = ["demo_prompts", "read_prompts"]


def read_prompts(path: Path, limit: int | None = None) -> list[PromptRecord]:
    """Read records with `turns` (messages of the user) or `prompt` (text to continue), and
    optionally `id`, `task` and `reference_documents`.

    limit: at most this many records.

    Raises UsageError, naming file and line, where the file cannot be read or a record is malformed.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read the prompt file {path}: {reason}") from error
    records = [
        _parse(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ][:limit]
    if not records:
        raise UsageError(f"the prompt file {path} holds no records")
    return records


def demo_prompts() -> list[PromptRecord]:
    """An open question, a summary, a code edit, and an answer from documents."""
    text = files("paceline").joinpath("data/demo_prompts.jsonl").read_text(encoding="utf-8")
    return [_parse(line, "demo prompts") for line in text.splitlines()]


def _parse(line: str, where: str) -> PromptRecord:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON ({error.msg}): write one record a line") from error
    if not isinstance(record, dict):
        raise UsageError(f'{where} is not a JSON object: write {{"turns": ["…"]}}')
    raw = "turns" not in record
    turns = [record.get("prompt")] if raw else record["turns"]
    if not _texts(turns) or not all(turns):
        raise UsageError(f'{where} needs "turns", a list of texts, or "prompt", a text')
    references = record.get("reference_documents") or []
    if not _texts(references, empty=True):
        raise UsageError(f'{where}: "reference_documents" must be a list of texts')
    return PromptRecord(
        id=str(record.get("id", where.rpartition(" ")[2])),
        turns=tuple(turns),
        task=str(record.get("task", "")),
        raw=raw,
        references=tuple(references),
    )


def _texts(value: Any, empty: bool = False) -> bool:
    return (
        isinstance(value, list)
        and (empty or bool(value))
        and all(isinstance(item, str) for item in value)
    )
