"""What became of every piece of a run, in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.json_files import json_bytes, replace_file

DONE, FAILED, UNFINISHED, LEFT_OUT = "done", "failed", "unfinished", "left out"
WAITING = "waiting"  # never begun; stands in no file
RUNNING = "running"  # in a file that was read: whoever wrote it was killed
_STATUSES = (DONE, FAILED, UNFINISHED, LEFT_OUT, RUNNING)
_FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What became of a piece.

    seconds: of all calls together. overruns: how often it ran into its own limit.
    reason: of a failure, or why it was left out. last: the last lines of its log, if it is not done.
    """

    status: str = WAITING
    seconds: float = 0.0
    calls: int = 0
    overruns: int = 0
    reason: str = ""
    last: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing is to be done any more."""
        return self.status in (DONE, FAILED)


@dataclass
class State:
    """Records by piece, in a file that is there whole or not at all.

    about: what has to be the same for pieces to be gone on with, e.g. the device.
    """

    path: Path
    about: Mapping[str, Any] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, about: Mapping[str, Any] | None = None) -> State:
        """The state in a file, or a new one where there is none.

        about: None to take what stands there. Raises UsageError where the file is damaged, cannot
        be read, or is about something else.
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
        """Keep a record, on the disk when this returns; None forgets it. Raises UsageError."""
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
    """Raises TypeError or ValueError for what is none."""
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
