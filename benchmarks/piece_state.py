"""The state of every piece of a run, in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.json_files import json_bytes, replace_file

DONE, FAILED, UNFINISHED, LEFT_OUT = "done", "failed", "unfinished", "left out"
WAITING = "waiting"  # never begun; in no file
RUNNING = "running"  # read from a file: its writer was killed
_STATUSES = (DONE, FAILED, UNFINISHED, LEFT_OUT, RUNNING)
_FORMAT = 1


@dataclass(frozen=True)
class Record:
    """The state of a piece.

    seconds: over all calls. overruns: how often it reached its own limit.
    reason: why it failed or was left out. last: the last lines of its log, unless it is done.
    """

    status: str = WAITING
    seconds: float = 0.0
    calls: int = 0
    overruns: int = 0
    reason: str = ""
    last: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing remains to be done."""
        return self.status in (DONE, FAILED)


@dataclass
class State:
    """Records by piece, in a file that is written whole or not at all.

    about: what must be the same to continue pieces, e.g. the device.
    """

    path: Path
    about: Mapping[str, Any] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, about: Mapping[str, Any] | None = None) -> State:
        """The state in a file, or a new one if there is none.

        about: None to take the file's. Raises UsageError if the file is damaged, cannot be read, or
        belongs to another `about`.
        """
        if not path.exists():
            return cls(path, about or {})
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = dict(content["about"])
            records = {str(name): _record(each) for name, each in content["pieces"].items()}
            if content["format"] != _FORMAT:
                raise ValueError
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} is damaged: delete it, and all pieces begin anew, those that keep what "
                "they have measured after that"
            ) from error
        for name, wanted in (about or {}).items():
            if found.get(name) != wanted:
                raise UsageError(
                    f"{path} belongs to a run with another {name} ({found.get(name)!r}, not "
                    f"{wanted!r}): choose another --out"
                )
        return cls(path, found if about is None else about, records)

    def __getitem__(self, name: str) -> Record:
        return self.records.get(name, Record())

    def put(self, name: str, record: Record | None) -> None:
        """Write a record to disk; None deletes it. Raises UsageError if writing fails."""
        self.records.pop(name, None)
        if record is not None:
            self.records[name] = record
        records = {name: asdict(each) for name, each in self.records.items()}
        content = {"format": _FORMAT, "about": dict(self.about), "pieces": records}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, json_bytes(content))
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror}") from error


def _record(content: Any) -> Record:
    """A record from JSON values. Raises TypeError or ValueError for anything else."""
    record = Record(**content)
    texts, numbers = (record.reason, *record.last), (record.seconds, record.calls, record.overruns)
    if not all(isinstance(each, str) for each in texts):
        raise TypeError("not a text")
    if not all(isinstance(each, int | float) for each in numbers):
        raise TypeError("not a number")
    if record.status not in _STATUSES:
        raise ValueError(record.status)
    status = UNFINISHED if record.status == RUNNING else record.status
    return replace(record, status=status, last=tuple(record.last))
