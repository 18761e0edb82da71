"""A small run that the tests make again and again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tiny import toy_session

from paceline.training import self_distillation
from paceline.training.asking import Asking
from paceline.training.data import Manifest
from paceline.training.order import PromptFile, read_prompt_files

MODEL = "toy-0123"


def prompt_file(folder: Path, count: int, name: str = "prompts.jsonl", **fields: Any) -> Path:
    """A file with prompts of one turn."""
    path = folder / name
    records = [
        {"id": f"{path.stem}/{i}", "turns": [f"{name} {i}?"], **fields} for i in range(count)
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def make(
    out: Path,
    files: list[PromptFile] | Path,
    tokens: int = 10**9,
    *,
    on_tokens: Callable[[int], None] = lambda count: None,
    fingerprint: str = MODEL,
    **asking: Any,
) -> Manifest:
    """`make_data` with a toy model and short answers; by default until the prompts are used up."""
    if isinstance(files, Path):
        files = read_prompt_files([files])
    session = toy_session(fingerprint=fingerprint)
    chosen = Asking(**{"max_new_tokens": 12, "batch": 3, **asking})
    return self_distillation.make_data(
        session, files, tokens, out, chosen, {"command": "test"}, on_tokens
    )


def content(folder: Path) -> dict[str, bytes]:
    """What a folder of data holds, but for the lock."""
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"
    }


def make_data(folder: Path) -> Path:
    """Answers of the toy model, in the vocabulary of bytes."""
    make(folder / "data", prompt_file(folder, 24), max_new_tokens=20)
    return folder / "data"
