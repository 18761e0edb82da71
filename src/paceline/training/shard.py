"""Shards: files of a few dozen answers, with the same bytes whenever they are made."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.errors import UsageError
from paceline.json_files import parse_json, replace_file

__all__ = ["Answer", "pack", "unpack", "write_file"]


@dataclass(frozen=True)
class Answer:
    """An answer of the target, and its prompt.

    id, task, licence, source: of the prompt; the turns of a conversation are "ID#1", "ID#2", …
    prompt: token ids, chat template included; in a conversation everything said before.
    tokens: the target's own, including the one that ended the text.
    finish_reason: "eos", or "length" if the answer was cut off.
    """

    id: str
    task: str
    licence: str
    source: str
    prompt: list[int]
    tokens: list[int]
    finish_reason: str


def pack(answers: Sequence[Answer]) -> bytes:
    """The content of a shard: JSON lines, gzipped."""
    lines = [
        json.dumps(asdict(answer), ensure_ascii=False, separators=(",", ":")) for answer in answers
    ]
    buffer = io.BytesIO()
    # Without the time and name that gzip records by default.
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return buffer.getvalue()


def unpack(path: Path, sha256: str) -> list[Answer]:
    """The answers of a shard; raises UsageError, naming it, if its bytes are not those that were
    written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the shard {path}: {error.strerror}; repeat its 'paceline train data' to "
            "make it again"
        ) from error
    try:
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError("its sha256 does not match")
        # Not `splitlines`, which also splits at characters that a JSON text may hold.
        lines = gzip.decompress(content).decode().split("\n")
        return [Answer(**parse_json(line)) for line in lines[:-1]]
    except (ValueError, TypeError, EOFError, OSError, zlib.error) as error:
        raise UsageError(
            f"the shard {path} is damaged ({error}): repeat its 'paceline train data' to make it "
            "again"
        ) from error


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all, whenever the process is killed.

    Raises UsageError if that fails.
    """
    try:
        # Only one process writes to such a folder; what a killed one leaves is overwritten.
        replace_file(path, content, path.with_name(f".{path.name}.tmp"))
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; repeat the command to continue with what is "
            "there"
        ) from error
