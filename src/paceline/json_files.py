"""Small files, mostly JSON, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import copymode
from typing import Any
from uuid import uuid4

from paceline.errors import ModelError

CHECKPOINT = "checkpoint.json"
"""In the folder of a training that has not ended, see `paceline.training.checkpoint`."""


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """A JSON object as file content."""
    text = json.dumps(dict(content), ensure_ascii=False, indent=2) + "\n"
    # Names of files may be no text; written so, JSON still reads them as they were.
    return text.encode(errors="backslashreplace")


def replace_file(path: Path, content: bytes | memoryview, draft: Path | None = None) -> None:
    """Write a file whole or not at all, even if the process is killed or others write the file too.
    It keeps its permissions. Raises OSError.

    draft: where the content is written first, and remains if the process is killed meanwhile; by
    default a file that nobody else writes.
    """
    draft = draft or path.with_name(f".{uuid4().hex}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            copymode(path, draft)
        draft.replace(path)
    finally:
        with suppress(OSError):  # it exists only if something went wrong
            draft.unlink(missing_ok=True)


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, with nesting that is too deep for it as another ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_text_json(content: str | bytes, **how: Any) -> Any:
    """`json.loads` of UTF-8 in which every string is text: JSON can encode half a character, a lone
    surrogate. how: more arguments. Raises ValueError that says what it is instead."""
    try:
        text = content if isinstance(content, str) else content.decode()
        value = json.loads(text, **how)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise ValueError("not UTF-8 text, or has a lone surrogate") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {str(error)[:200]}") from error
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ModelError, naming it, if unreadable or not an object."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ModelError(f"{path} is damaged: it is not a JSON object")
    return content
