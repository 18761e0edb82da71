"""Files that only their owner can read: they hold what people have asked and been told."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from shutil import copymode
from typing import IO

from paceline.errors import StoreError

Stamp = tuple[int, int, int]


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file in a binary mode; if that creates it, nobody else can read it."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def write_whole(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a private file, and wait until it is on disk: a power failure must not take it."""
    with open_private(path, "wb") as stream:
        stream.writelines(parts)
        stream.flush()
        os.fsync(stream.fileno())


def begins(path: Path, magic: bytes) -> bool:
    """Whether there is a file that begins with these bytes. Raises OSError if it cannot be read."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(magic)) == magic


def stamp_of(path: Path) -> Stamp | None:
    """What changes when a file is replaced; None without one. Raises OSError."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def draft_of(path: Path) -> Path:
    """Where the draft of a file is written."""
    return path.with_name(f".{path.name}.new")


def put_in_place(draft: Path, path: Path) -> None:
    """Replace a file by a draft, which takes over its permissions."""
    if path.exists():
        copymode(path, draft)
    draft.replace(path)


def damaged(path: Path, ours: bool) -> StoreError:
    """What to raise for a file that cannot be read as one of a datastore.

    ours: whether it begins as such; `clear_datastore` may refuse to delete any other."""
    if ours:
        return StoreError(
            f"the datastore file {path} is damaged: delete it with 'paceline datastore clear "
            f"{path.parent}' and build it again"
        )
    return StoreError(
        f"the datastore file {path} is damaged, or a file of another program: name another folder "
        "for the datastore, or delete this file yourself"
    )


def check_folder(folder: Path, ours: Iterable[str]) -> None:
    """Raises StoreError for a file, and for a folder of something else, which would get a log.

    ours: names of a datastore's files."""
    if folder.is_file():
        raise StoreError(f"{folder} is a file: name a folder for the datastore")
    begun = any((folder / name).exists() for name in ours)
    if folder.is_dir() and not begun and any(folder.iterdir()):
        raise StoreError(
            f"{folder} holds other files and no datastore: name another folder, or add its texts to "
            "a datastore with 'paceline datastore build'"
        )
