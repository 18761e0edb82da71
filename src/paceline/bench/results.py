"""Result files: one line per trial, written immediately, so that no measurement is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.bench.entries import Entry, LeftOut, parse_line
from paceline.errors import UsageError, readable, writable
from paceline.json_files import parse_json

FORMAT = 1
COLD, WARM = "cold", "warm"
"""The "state" of a run, how its texts begin: see `Method.warm`."""
_BEGIN = f'{{"format":{FORMAT},'.encode()


class ResultFile(list[Entry | LeftOut]):
    """The entries of a JSONL file whose first line describes the run; every other line is an entry.

    header: JSON values; a run can be resumed only if `header["run"]` is the same.
    resume: continue an existing file. A last line cut off by a crash is dropped.

    Raises UsageError if the file exists and `resume` is not set, if it holds another run, or if it
    cannot be read or written.
    """

    def __init__(self, path: Path, header: dict[str, Any], resume: bool = False) -> None:
        super().__init__()
        self.path = path
        with writable(f"results to {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
        if content and not resume:
            raise UsageError(
                f"{path} already holds results: continue with --resume, or choose another --out"
            )
        begun = b"\n" in content or content[: len(_BEGIN)] != _BEGIN[: len(content)]
        if begun:
            found, entries = read_results(path)
            _check_same_run(path, found.get("run", {}), header["run"])
            self.extend(entries)
        with writable(f"results to {path}"):
            path.touch()
            os.truncate(path, content.rfind(b"\n") + 1)
        if not begun:
            self._write({"format": FORMAT, **header})

    def append(self, entry: Entry | LeftOut) -> None:
        """Write a line; it is on disk when this returns."""
        super().append(entry)
        self._write(vars(entry) if isinstance(entry, LeftOut) else entry.to_json())

    def _write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
        hint = "; what was measured so far is kept there: continue with --resume"
        with writable(f"results to {self.path}", hint), self.path.open("ab") as file:
            # Names of files may be no text; written so, JSON still reads them as they were.
            file.write(line.encode(errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())


def read_results(path: Path) -> tuple[dict[str, Any], list[Entry | LeftOut]]:
    """Read header and entries of a result file, ignoring a last line that was cut off.

    Raises UsageError, naming the line, if the file cannot be read or is no result file.
    """
    with readable(f"the results {path}"):
        content = path.read_bytes()
        # If no line is complete, keep the only one, so that the error names it.
        # Editors may begin a file with a mark.
        text = content[: content.rfind(b"\n") + 1 or None].decode("utf-8-sig")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line]
    records = [_parse(path, number, line, number == lines[0][0]) for number, line in lines]
    header = records[0] if records else {}
    if header.get("format") != FORMAT or not isinstance(header.get("run", {}), dict):
        raise UsageError(f"{path} is not a result file of this version of paceline")
    entries: list[Entry | LeftOut] = []
    for (number, _), record in list(zip(lines, records))[1:]:
        try:
            entries.append(parse_line(record))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UsageError(
                f"{path}, line {number} is not the result of a trial ({error}): delete the line "
                "and continue with --resume"
            ) from error
    return header, entries


def object_in(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The JSON object under this name; an empty one if there is none."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _parse(path: Path, number: int, line: str, first: bool) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except ValueError as error:
        if first:  # without it nobody knows what the others are results of
            raise UsageError(
                f"{path}: its first line does not describe a run of 'paceline bench': restore it "
                "from a copy, or name another file or folder"
            ) from error
        raise UsageError(
            f"{path}, line {number} is damaged: delete the line and continue with --resume"
        ) from error
    if not isinstance(record, dict):
        raise UsageError(f"{path}, line {number} is not a JSON object: this is not a result file")
    return record


def _check_same_run(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    # Older files do not name the state; their texts are cold.
    found, wanted = ({"state": COLD, **run} for run in (found, json.loads(json.dumps(wanted))))
    for name in {**found, **wanted}:
        if found.get(name) != wanted.get(name):
            raise UsageError(
                f"{path} holds a run with another {name} ({found.get(name)!r}, not "
                f"{wanted.get(name)!r}): repeat its command, or choose another --out"
            )
