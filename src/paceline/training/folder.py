"""A folder that one process at a time works in, and that can be continued after a kill."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from paceline.errors import UsageError, writable
from paceline.file_locks import alone
from paceline.json_files import replace_file

# What reading a damaged file raises.
_DAMAGED = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, OverflowError),
    *(zlib.error, SafetensorError),
)
_READABLE = 200  # most characters of a printed difference; a whole recipe's settings have more


def check_same_run(
    folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any], what: str
) -> None:
    """Raise UsageError, naming the first difference, if a folder holds the work of another run.

    what: the folder holds, for the message, e.g. "data made".
    """
    for name in {**wanted, **found}:
        one, other = found.get(name), wanted.get(name)
        if one != other:
            if isinstance(one, Mapping) and isinstance(other, Mapping):
                name, one, other = _first_difference(name, one, other)
            which = "other" if name in ("prompts", "data") else "another"
            values = f" ({one!r}, not {other!r})"
            if len(values) >= _READABLE:
                values = ""
            raise UsageError(
                f"{folder} holds {what} with {which} {name}{values}: repeat its command, or choose "
                "another folder"
            )


def _first_difference(
    name: str, found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> tuple[str, Any, Any]:
    """The first entry that differs: its name within `name`, and both values."""
    missing = object()
    keys = {**wanted, **found}
    key = next(key for key in keys if found.get(key, missing) != wanted.get(key, missing))
    return f"{key} in its {name}", found.get(key), wanted.get(key)


def held(folder: Path) -> AbstractContextManager[None]:
    """Create a folder and lock it against other processes, until this one ends in any way."""
    return alone(folder / ".lock", folder, f"to {folder}")


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all, whenever the process is killed. Raises UsageError if that
    fails."""
    with writable(path, "; repeat the command to continue with what is there"):
        # Only one process writes to such a folder; what a killed one leaves is overwritten.
        replace_file(path, content, path.with_name(f".{path.name}.tmp"))


def read_checked(path: Path, sha256: str) -> bytes:
    """The content of a file; raises ValueError if that is not its hash."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("its sha256 does not match")
    return content


@contextmanager
def undamaged(what: str, advice: str) -> Iterator[None]:
    """Raise UsageError, naming `what`, if the body cannot read it, or finds that it is damaged.
    advice: what to do."""
    try:
        yield
    except _DAMAGED as error:
        if reason := getattr(error, "strerror", None):
            more = f"; {advice}" if isinstance(error, FileNotFoundError) else ""
            raise UsageError(f"cannot read {what}: {reason}{more}") from error
        reason = repr(error) if isinstance(error, KeyError) else error
        raise UsageError(f"{what} is damaged ({reason}): {advice}") from error
