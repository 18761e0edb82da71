"""Small files, mostly JSON, written whole or not at all, and folders that one of them finishes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copymode
from typing import Any
from uuid import uuid4

from paceline.errors import ModelError, readable, writable

CHECKPOINT = "checkpoint.json"
"""In the folder of a training that has not ended, see `paceline.training.checkpoint`."""

_FORMAT = 1


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
    with readable(path, ModelError):
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
        except ValueError:
            content = None
    if not isinstance(content, dict):
        raise ModelError(f"{path} is damaged: it is not a JSON object")
    return content


@contextmanager
def recorded(record: Path, kind: str, about: Mapping[str, Any], what: str = "") -> Iterator[None]:
    """Write a folder: its files in the body, then its record. Raises ModelError if that fails.

    kind: of the folder. what: the same in a message, if that is something else.
    """
    with writable(f"{what or kind} to {record.parent}", kind=ModelError):
        record.parent.mkdir(parents=True, exist_ok=True)
        # A folder without a record holds nothing. It is deleted first and written last, so a
        # process killed in between leaves none, and never that of another training.
        record.unlink(missing_ok=True)
        yield
        replace_file(record, json_bytes({"format": _FORMAT, "kind": kind, **about}))


@contextmanager
def described(record: Path, kind: str, what: str = "") -> Iterator[dict[str, Any]]:
    """The content of the record of a `recorded` folder, while the body makes something of it.
    Raises ModelError, naming the file, if either fails."""
    about = read_json(record)
    try:
        if (about.pop("format"), about.pop("kind")) != (_FORMAT, kind):
            raise ValueError("it has another format or kind")
        yield about
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise ModelError(
            f"{record} does not describe {what or kind} ({error}): name another folder"
        ) from error


def has_record(record: Path, other: str) -> bool:
    """Whether a folder has its record. Raises ModelError if it has this other file without one, and
    not because a training was killed there."""
    found, folder = record.exists(), record.parent
    if not found and (folder / other).exists() and not (folder / CHECKPOINT).exists():
        raise ModelError(f"{folder} holds something else: choose another folder")
    return found
