"""Files that only their owner can read: they hold what people have asked and been told."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copymode
from typing import IO

__all__ = ["begins", "draft_of", "open_private", "put_in_place"]


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file in a binary mode; if that creates it, nobody else can read it."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def begins(path: Path, magic: bytes) -> bool:
    """Whether there is a file that begins with these bytes. Raises OSError if it cannot be read."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(magic)) == magic


def draft_of(path: Path) -> Path:
    """Where the draft of a file is written."""
    return path.with_name(f".{path.name}.new")


def put_in_place(draft: Path, path: Path) -> None:
    """Replace a file by a draft, which takes over its permissions."""
    if path.exists():
        copymode(path, draft)
    draft.replace(path)
