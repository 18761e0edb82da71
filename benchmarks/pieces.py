"""Work in pieces: commands, one after the other, until the time is up.

Every piece is a separate process with a limit, a log and a result file. A state file records the
outcome, so that the next call continues where this one ended, whatever ended it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from paceline.errors import PacelineError, UsageError
from piece_state import DONE, FAILED, LEFT_OUT, RUNNING, UNFINISHED, Record, State

LOG_LINES, LAST_LINES = 200, 20
_TAIL_BYTES = 1 << 20
KILL_SECONDS = 5.0  # between asking a process to end and killing it

Note = Callable[[str], None]


@dataclass(frozen=True)
class Piece:
    """Something to run.

    name: words joined by "-", the kind first. about: one line for readers.
    limit: seconds of a first try. least: seconds below which it is not started.
    command: called just before the run, returns what to run; raises PacelineError if something it
    needs is missing, and the piece waits.
    results: files it writes; the first must exist in the end.
    """

    name: str
    about: str
    limit: float
    least: float
    command: Callable[[], Sequence[str]]
    results: tuple[Path, ...]

    def is_called(self, name: str) -> bool:
        """Whether `name` is its name, or the kind that its name begins with."""
        return f"{self.name}-".startswith(f"{name}-")


def named(pieces: Sequence[Piece], names: Iterable[str]) -> list[Piece]:
    """Pieces by name or kind. Raises UsageError for unknown names."""
    names = list(names)
    for name in names:
        if not any(piece.is_called(name) for piece in pieces):
            known = ", ".join(piece.name for piece in pieces)
            raise UsageError(f"there is no piece {name!r}; there are: {known}")
    return [piece for piece in pieces if any(map(piece.is_called, names))]


def again(piece: Piece, state: State) -> None:
    """Let a piece run again: a finished one starts over, any other continues if it can."""
    if state[piece.name].status == DONE:
        for path in piece.results:
            path.unlink(missing_ok=True)
    state.put(piece.name, None)


@dataclass
class Runner:
    """Runs pieces until a deadline.

    folder: for the logs. deadline: by `clock`, in seconds; processes have ended by then.
    environment, cwd: of the processes. note: called with progress messages.
    """

    folder: Path
    deadline: float
    environment: Mapping[str, str] | None = None
    cwd: Path | None = None
    note: Note = print
    clock: Callable[[], float] = monotonic

    def run(self, pieces: Sequence[Piece], state: State) -> bool:
        """Run what is not over yet; return whether nothing failed.

        Pieces that reached their own limit before come last, with all the remaining time.
        """
        well = True
        waiting = [piece for piece in pieces if not state[piece.name].over]
        for piece in sorted(waiting, key=lambda piece: state[piece.name].overruns):
            before, left = state[piece.name], self.deadline - self.clock() - 2 * KILL_SECONDS
            seconds = left if before.overruns else min(piece.limit, left)
            if seconds < piece.least:
                self.note(f"{piece.name}: too little time is left, it waits for the next call")
                continue
            try:
                command = piece.command()
            except PacelineError as error:
                state.put(piece.name, replace(before, status=LEFT_OUT, reason=str(error)))
                self.note(f"{piece.name}: left out: {error}")
                continue
            self.note(f"{piece.name}: {piece.about} (at most {seconds:.0f} s)")
            record = self._run(piece, command, seconds, before, state)
            self.note(f"{piece.name}: {_outcome(record)}")
            well &= record.status != FAILED
        return well

    def _run(
        self, piece: Piece, command: Sequence[str], seconds: float, before: Record, state: State
    ) -> Record:
        state.put(piece.name, replace(before, status=RUNNING, calls=before.calls + 1))
        log, began, code = self.folder / f"{piece.name}.log", self.clock(), None
        record = replace(before, status=UNFINISHED, calls=before.calls + 1, reason="", last=())
        try:
            code = self._wait_for(command, log, seconds)
            own_limit = before.overruns > 0 or seconds >= piece.limit
            record = replace(record, overruns=before.overruns + (code is None and own_limit))
        finally:  # record interrupts, too
            record = replace(record, seconds=round(before.seconds + self.clock() - began, 1))
            lines = _trimmed(log)
            if code is not None:
                reason = _reason(code, piece.results[0])
                record = replace(record, status=FAILED if reason else DONE, reason=reason)
            if record.status != DONE:
                record = replace(record, last=tuple(lines[-LAST_LINES:]))
            state.put(piece.name, record)
        return record

    def _wait_for(self, command: Sequence[str], log: Path, seconds: float) -> int | None:
        """The exit code; None if time ran out and the process was ended with its children."""
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.cwd,
                start_new_session=True,
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and the group that it leads."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)


def _reason(code: int, result: Path) -> str:
    """Why an ended process failed; "" if it did not."""
    if code:
        return f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    try:
        content = result.read_text(encoding="utf-8")
        for text in content.splitlines() if result.suffix == ".jsonl" else [content]:
            json.loads(text)
    except (OSError, ValueError):
        return f"it has not written {result.name}"
    return ""


def _trimmed(log: Path) -> list[str]:
    """Cut a log down to its last lines, and return them."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError:
        return []
    return lines


def _outcome(record: Record) -> str:
    calls = f" in {record.calls} calls" if record.calls > 1 else ""
    text = f"{record.status} after {record.seconds:.0f} s{calls}"
    if record.status != FAILED:
        return text
    return f"{text}, {record.reason}: {next(iter(record.last[-1:]), 'it said nothing')}"


def listing(pieces: Sequence[Piece], state: State) -> list[str]:
    """One line per piece: its status, and what it is."""
    width = max((len(piece.name) for piece in pieces), default=0)
    lines = []
    for piece in pieces:
        record = state[piece.name]
        reason = f": {record.reason}" if record.reason else ""
        lines.append(f"{piece.name:{width}}  {record.status:10}  {piece.about}{reason}")
    return lines
