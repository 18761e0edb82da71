"""The prompts that all pieces of a GPU run share: edits, summaries and chat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.json_files import replace_file
from paceline.prompts import PromptRecord, demo_prompts, read_prompts

TASKS = {
    "edits": ("canitedit", "editeval", "humanevalfix"),
    "summaries": ("cnndm", "xsum"),
    "chat": ("mt_bench", "vicuna_bench"),
}
"""Task -> files in a folder of suites, without their suffix; the existing ones are read."""
MIXED = "mixed"
"""All tasks in turns, so that even a run that is cut short covers each."""

_BUNDLED = {"code_edit": "edits", "summarization": "summaries"}  # the others are chat
_SHORT = {
    "edits": "Repeat after me: one two three, one two three.",
    "summaries": "Say in one word: rain fell all day and the match was called off.",
    "chat": "Name three colours of the rainbow.",
}


def write_prompts(folder: Path, data: Path | None, most: int, mixed: int) -> None:
    """Write TASK.jsonl for every task and mixed.jsonl, or check that they already hold the same.

    data: a folder of suites; None to keep what is in `folder`, or else to take the bundled prompts.
    most, mixed: how many prompts of each task go into its own file, and into the mixed one.

    Raises UsageError if `data` has no file for a task, or `folder` holds other prompts.
    """
    if data is None and (folder / f"{MIXED}.jsonl").exists():
        return
    found = _bundled() if data is None else {task: _gathered(data, task, most) for task in TASKS}
    _write(folder, found, mixed)


def write_short_prompts(folder: Path) -> None:
    """Write one short prompt per task."""
    _write(folder, {task: [PromptRecord("0", (text,))] for task, text in _SHORT.items()}, 1)


def _gathered(data: Path, task: str, most: int) -> list[PromptRecord]:
    """Prompts from the task's files in turns."""
    paths = [path for name in TASKS[task] if (path := data / f"{name}.jsonl").is_file()]
    if not paths:
        raise UsageError(
            f"{data} has none of {', '.join(f'{name}.jsonl' for name in TASKS[task])}: name another "
            "folder with --data, or leave it out for the prompts that come with the package"
        )
    piles = [[_renamed(path.stem, record) for record in read_prompts(path, most)] for path in paths]
    return _in_turns(piles)[:most]


def _renamed(file: str, record: PromptRecord) -> PromptRecord:
    return PromptRecord(f"{file}-{record.id}", record.turns, "", record.raw, record.references)


def _bundled() -> dict[str, list[PromptRecord]]:
    found: dict[str, list[PromptRecord]] = {task: [] for task in TASKS}
    for record in demo_prompts():
        found[_BUNDLED.get(record.task, "chat")].append(record)
    return found


def _in_turns(piles: Iterable[Sequence[PromptRecord]]) -> list[PromptRecord]:
    return [record for record in chain(*zip_longest(*piles)) if record is not None]


def _write(folder: Path, found: dict[str, list[PromptRecord]], mixed: int) -> None:
    lines = {
        task: [_as_json(task, f"{task}-{record.id}", record) for record in records]
        for task, records in found.items()
    }
    first = (own[:mixed] for own in lines.values())
    lines[MIXED] = [line for line in chain(*zip_longest(*first)) if line is not None]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, own in lines.items():
            path, content = folder / f"{name}.jsonl", "".join(f"{line}\n" for line in own).encode()
            if path.exists() and path.read_bytes() != content:
                raise UsageError(f"{path} holds other prompts already: choose another --out")
            replace_file(path, content)
    except OSError as error:
        raise UsageError(f"cannot write prompts to {folder}: {error.strerror}") from error


def _as_json(task: str, name: str, record: PromptRecord) -> str:
    content: dict[str, Any] = {"id": name, "task": task}
    if record.raw:
        content["prompt"] = record.turns[0]
    else:
        content["turns"] = list(record.turns)
    if record.references:
        content["reference_documents"] = list(record.references)
    return json.dumps(content, ensure_ascii=False)
