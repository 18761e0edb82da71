"""Result files of a batch: lines are appended, and an interrupted batch continues them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from paceline.errors import UsageError, writable
from paceline.file_locks import alone, lock_beside
from paceline.json_files import parse_json
from paceline.serve.batch_lines import ID_MARK, BatchLine, Outcome

_HEAD = f'{{"id": "{ID_MARK}'.encode()


@dataclass
class BatchCounts:
    """Progress of a batch.

    known: lines that already had a result. answered, failed: of the others. tokens: written.
    """

    known: int = 0
    answered: int = 0
    failed: int = 0
    tokens: int = 0
    codes: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one more result."""
        if outcome.failed:
            self.failed += 1
            self.codes[_code(outcome)] += 1
        else:
            self.answered += 1
            usage = outcome.body["usage"]
            self.tokens += usage.get("completion_tokens", usage.get("output_tokens"))


class Results:
    """The known results of a batch, and the files that receive more. Made by `results_in`.

    output, errors: for answers and for failed requests, perhaps the same file. failed: whether any
    result is a failure. counts: of what is written. heard: called after each.
    """

    def __init__(self, output: BinaryIO, errors: BinaryIO) -> None:
        self._output, self._errors = output, errors
        # By custom_id: the id of the line, where its result is, and how to have another one.
        self._known: dict[str, tuple[str, str, str]] = {}
        self._broken: set[str] = set()
        self.failed = False
        self.counts = BatchCounts()
        self.heard: Callable[[BatchCounts], None] = lambda _: None

    def has(self, line: BatchLine) -> bool:
        """Whether this line already has a result.

        Raises UsageError if there is one for another request with the same custom_id.
        """
        if line.custom_id is None:
            return line.id in self._broken
        if line.custom_id not in self._known:
            return False
        known, place, instead = self._known[line.custom_id]
        if known != line.id:
            raise UsageError(
                f"the result for custom_id {line.custom_id[:100]!r} in {place} is for another "
                f"request than line {line.number}: {instead}"
            )
        return True

    def unanswered(self, lines: Iterable[BatchLine]) -> Iterator[BatchLine]:
        """Yield the lines without a result; the others are counted. Raises what `has` raises."""
        for line in lines:
            if self.has(line):
                self.counts.known += 1
            else:
                yield line

    def write(self, outcome: Outcome) -> None:
        """Append a result as a whole line. Raises UsageError if it cannot be written."""
        file = self._errors if outcome.failed else self._output
        line = json.dumps(outcome.as_json(), ensure_ascii=False) + "\n"
        with writable("the result of a batch"):
            file.write(line.encode())
            file.flush()
        self.failed |= outcome.failed
        self.counts.add(outcome)
        self.heard(self.counts)

    def remember(self, line: bytes, place: str, errors: bool) -> bool:
        """Remember an existing line; False if it is no result.

        place: the file's name. errors: whether that is the file of failed requests.
        """
        try:
            record = parse_json(line)
            found, custom_id = record["id"], record["custom_id"]
            answered = record["error"] is None and record["response"]["status_code"] == 200
            if not isinstance(found, str):
                return False
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        self.failed |= not answered
        if custom_id is None:
            self._broken.add(found)
        else:
            instead = "choose another output file"
            if errors:
                instead = "delete that file, or this line of it, to have failed requests repeated"
            elif not answered:
                instead = f"delete this line of it, or {instead}"
            self._known.setdefault(str(custom_id), (found, place, instead))  # an answer wins
        return True


@contextmanager
def results_in(output: Path, errors: Path | None = None) -> Iterator[Results]:
    """Open the result files of a batch, and lock out other processes. An incomplete last line is
    removed.

    Raises UsageError if they cannot be written, or hold anything else.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(_opened(path)) for path in (output, errors) if path]
        results = Results(files[0], files[-1])
        for path, file in zip((output, errors), files):
            _take_in(results, file, f"{path}", errors=path is errors)
        yield results


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder, name a file in it")
    if path.exists() and not path.is_file():
        raise UsageError(f"cannot write {path}: results can only be continued in a file")
    path = path.resolve()
    lock = lock_beside(path)
    with alone(lock, path, f"{path}"):
        with writable(path):
            path.touch()
            file = path.open("r+b")
        try:
            yield file
        finally:
            with writable(path):
                file.close()  # which tries to write again what could not be written
            # Whoever takes the lock from now on finds a finished file. Windows keeps it.
            with suppress(OSError):
                lock.unlink()


def _take_in(results: Results, file: BinaryIO, name: str, errors: bool) -> None:
    """Read existing lines, and seek to where the next one goes."""
    end = 0
    for number, line in enumerate(file, start=1):
        if line.endswith(b"\n"):
            if line.strip() and not results.remember(line, name, errors):
                raise UsageError(
                    f"{name}, line {number} is not a batch result: choose another file"
                )
            end += len(line)
        elif not line.startswith(_HEAD[: len(line)]):
            raise UsageError(f"the end of {name} is not a batch result: choose another file")
    file.seek(end)
    file.truncate()


def _code(outcome: Outcome) -> str:
    if outcome.line.error is not None:
        return outcome.line.error[0]
    error = outcome.body["error"]
    return str(error["code"] or error["type"])
