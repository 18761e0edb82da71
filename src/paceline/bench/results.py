"""Result files: one line per trial, written as it comes, so that nothing measured is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from paceline.bench.entries import Entry, LeftOut, parse_line
from paceline.errors import UsageError

__all__ = ["COLD", "FORMAT", "WARM", "Memory", "ResultFile", "Sink", "read_results"]

FORMAT = 1
COLD, WARM = "cold", "warm"
"""How the texts of a run begin, its "state": see `Method.warm`."""
_BEGIN = f'{{"format":{FORMAT},'.encode()


class Sink(Protocol):
    """Where entries go, and where those of an interrupted run come from."""

    @property
    def entries(self) -> list[Entry | LeftOut]:
        """All so far."""
        ...

    def append(self, entry: Entry | LeftOut) -> None:
        """Keep one more."""
        ...


class Memory:
    """A sink that keeps entries for as long as the process lives."""

    def __init__(self) -> None:
        self.entries: list[Entry | LeftOut] = []

    def append(self, entry: Entry | LeftOut) -> None:
        """Keep one more."""
        self.entries.append(entry)


class ResultFile:
    """A JSONL file whose first line says what was run on what, and every other is an entry.

    header: JSON values; `header["run"]` is what has to be the same for a run to be gone on with.
    resume: go on with a file that is there. A last line that was cut off by a crash is dropped.

    Raises UsageError where the file is there and `resume` is not set, where it holds another run,
    or cannot be read or written.
    """

    def __init__(self, path: Path, header: dict[str, Any], resume: bool = False) -> None:
        self.path = path
        self.entries: list[Entry | LeftOut] = []
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
        if content and not resume:
            raise UsageError(
                f"{path} holds results already: go on with --resume, or choose another --out"
            )
        begun = b"\n" in content or content[: len(_BEGIN)] != _BEGIN[: len(content)]
        if begun:
            found, self.entries = read_results(path)
            _check_same_run(path, found.get("run", {}), header["run"])
        with _writing(path):
            path.touch()
            os.truncate(path, content.rfind(b"\n") + 1)
        if not begun:
            self._write({"format": FORMAT, **header})

    def append(self, entry: Entry | LeftOut) -> None:
        """Write one more line; it is on the disk when this returns."""
        self.entries.append(entry)
        self._write(vars(entry) if isinstance(entry, LeftOut) else entry.to_json())

    def _write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
        hint = "; what was measured so far is kept there, go on with --resume"
        with _writing(self.path, hint), self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def read_results(path: Path) -> tuple[dict[str, Any], list[Entry | LeftOut]]:
    """Header and entries of a result file; a last line that was cut off is passed over.

    Raises UsageError, naming the line, where it cannot be read or is no such file.
    """
    try:
        content = path.read_bytes()
        # Of a file without a single whole line, the line that there is shall be told of.
        lines = content[: content.rfind(b"\n") + 1 or None].decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read the results {path}: {reason}") from error
    records = [_parse(line, f"{path}, line {number}") for number, line in _full(lines)]
    if not records or records[0].get("format") != FORMAT:
        raise UsageError(f"{path} is no result file of this version of paceline")
    entries: list[Entry | LeftOut] = []
    for (number, _), record in list(zip(_full(lines), records))[1:]:
        try:
            entries.append(parse_line(record))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number} is no result of a trial ({error}): delete the line and "
                "go on with --resume"
            ) from error
    return records[0], entries


def _full(lines: list[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line)


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is damaged: delete the line and go on with --resume") from error
    if not isinstance(record, dict):
        raise UsageError(f"{where} is no JSON object: this is no result file")
    return record


@contextmanager
def _writing(path: Path, hint: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write results to {path}: {error.strerror}{hint}") from error


def _check_same_run(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    # Files from before there was a choice say nothing of the state, and are of cold texts.
    found, wanted = ({"state": COLD, **run} for run in (found, json.loads(json.dumps(wanted))))
    for name in {**found, **wanted}:
        if found.get(name) != wanted.get(name):
            raise UsageError(
                f"{path} holds a run with another {name} ({found.get(name)!r}, not "
                f"{wanted.get(name)!r}): repeat its command, or choose another --out"
            )
