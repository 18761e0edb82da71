"""Descriptions and hashes of the user's own GGUF files, kept so that each is made once.

- `<cache root>/gguf/<mark>/` describes all files with one header and size: see `describe_gguf`.
- `<cache root>/gguf/hashes.json` has the sha256 of whole files.
- `<cache root>/gguf/.lock` is locked while any of it changes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.file_locks import held
from paceline.json_files import json_bytes, read_json, replace_file
from paceline.models.cache import LOCK, PATIENCE, FolderCache, hash_file, sampled, was_used
from paceline.models.gguf_description import describe_gguf
from paceline.models.gguf_file import GgufFile
from paceline.models.progress import ProgressCallback, ignore_progress

_RECORD = "paceline.json"
_FORMAT = 6  # increased whenever descriptions of the same file change
_MOST_HASHES = 128
_DIGITS = 32
_PARTS = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
_HASHES = "hashes.json"
_CACHE = FolderCache("gguf", holds=_RECORD, most=32, files=(_HASHES,))


@contextmanager
def described(file: GgufFile, progress: ProgressCallback = ignore_progress) -> Iterator[Path]:
    """The folder of a file's description, valid during the body; made if missing or damaged.

    If the cache folder cannot be written, it is made just for this body. Raises whatever
    transformers raises if it cannot read the file.
    """
    place = _CACHE.root / file.mark()[:_DIGITS]
    if _is_sound(place):
        was_used(place)
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
        made = Path(scratch, "made")  # the scratch folder itself is private, and copies would be
        made.mkdir()
        progress("convert", 0, None)
        describe_gguf(file.path, made)
        files = {path.name: hash_file(path) for path in sorted(made.iterdir())}
        (made / _RECORD).write_bytes(json_bytes({**_versions(), "files": files}))
        # A full disk, a read-only folder, or another file by now: it is made again next time.
        with suppress(OSError), _CACHE.making(place.name) as new:
            if GgufFile(file.path).mark() != file.mark():
                raise OSError("it was replaced meanwhile")
            shutil.copytree(made, new, dirs_exist_ok=True)
        yield made


def hash_of(path: Path) -> str:
    """The sha256 of a whole file, as last computed unless the file has changed since.

    Size, modification time and a sample of its bytes say whether it has.
    """
    path = path.resolve()
    place, seen = str(path), _seen(path)
    known = _read(_CACHE.root / _HASHES).get(place)
    if isinstance(known, list) and known[:-1] == seen and isinstance(known[-1], str):
        return known[-1]
    found = hash_file(path)
    if _seen(path) != seen:  # replaced meanwhile
        return found
    # Otherwise it is computed again.
    with suppress(OSError), held(_CACHE.root / LOCK, patience=PATIENCE):
        hashes = _read(_CACHE.root / _HASHES)
        hashes.pop(place, None)
        kept = list(hashes.items())[1 - _MOST_HASHES :]
        replace_file(_CACHE.root / _HASHES, json_bytes(dict(kept) | {place: [*seen, found]}))
    return found


def _seen(path: Path) -> list[Any]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, sampled([path])]


def clear_descriptions() -> int:
    """Delete all descriptions and hashes; returns the bytes freed, see `FolderCache.clear`."""
    return _CACHE.clear()


def _is_sound(place: Path) -> bool:
    """Whether the description is there, intact, and made by these versions."""
    record = _read(place / _RECORD)
    files = record.pop("files", None)
    if record != _versions() or not isinstance(files, dict) or not files.keys() >= _PARTS:
        return False
    try:
        return all(hash_file(place / name) == digest for name, digest in files.items())
    except OSError:
        return False


@cache
def _versions() -> dict[str, Any]:
    return {"format": _FORMAT, **{name: version(name) for name in ("gguf", "transformers")}}


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if it cannot be read."""
    try:
        return read_json(path)
    except ModelError:
        return {}
