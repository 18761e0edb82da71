"""Where models are kept, and how a kept folder is known to be whole.

<cache root>/models/<alias>/           a finished model; it appears in one atomic rename
                    <alias>/paceline.json   what it was made from, and each file's size and hash
                    .staging/<alias>/  work in progress, or what a killed process left
                    .locks/<alias>     held while anything below the alias's name changes
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout

from paceline.errors import ModelError

__all__ = [
    "RECORD_NAME",
    "cache_root",
    "explain_os_errors",
    "find_damage",
    "folder_size",
    "hash_file",
    "held",
    "weights_damage",
    "write_record",
]

RECORD_NAME = "paceline.json"
_RECORD_FORMAT = 1
_CHUNK = 1 << 22


def cache_root() -> Path:
    """The folder for everything paceline keeps: $PACELINE_CACHE, else the user's cache folder.

    It is not created here.
    """
    chosen = os.environ.get("PACELINE_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("paceline"))


@contextmanager
def explain_os_errors(root: Path) -> Iterator[None]:
    """Turn a failure to write below `root` into one sentence.

    Raises:
        ModelError: in place of any OSError from the body.
    """
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"cannot write to the cache folder {root} ({error.strerror or error}): free some space, "
            "mend its permissions, or set PACELINE_CACHE to another folder"
        ) from error


@contextmanager
def held(lock_file: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an inter-process lock for the body; `on_wait` is called if another process has it."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def hash_file(path: Path, on_bytes: Callable[[int], None] = lambda done: None) -> str:
    """The sha256 of a file, read in pieces; `on_bytes` hears how many bytes are done."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return digest.hexdigest()


def folder_size(folder: Path) -> int:
    """Bytes in all files below a folder; files that vanish meanwhile count as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def write_record(folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write the record of a finished folder: where it came from, and what every file must be."""
    files = {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": hash_file(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    record = {"format": _RECORD_FORMAT, **provenance, "files": files}
    (folder / RECORD_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def find_damage(folder: Path) -> str | None:
    """What is wrong with a kept folder, in a few words, or None. Reads no weights: milliseconds."""
    try:
        record = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
        sizes = {name: int(entry["size"]) for name, entry in record["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{RECORD_NAME} is missing or unreadable"
    for name, size in sizes.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found is None:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
    return weights_damage(folder)


def weights_damage(folder: Path) -> str | None:
    """Which safetensors file of any model folder is cut short or not one, or None."""
    for path in sorted(folder.glob("*.safetensors")):
        if not _is_whole_safetensors(path):
            return f"{path.name} is truncated or corrupt"
    return None


def _is_whole_safetensors(path: Path) -> bool:
    """Whether the header parses and the file is exactly as long as the header says."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 + length:
            return False
        try:
            header = json.loads(stream.read(length))
            ends = [
                entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
            ]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return False
    return size == 8 + length + max(ends, default=0)
