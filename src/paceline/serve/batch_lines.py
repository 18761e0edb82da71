"""Lines of OpenAI's batch files: one request per line, and its result. Both also as rows of text,
which travel to other processes and back.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
{"id": "…", "custom_id": "a", "response": {"status_code": 200, "request_id": "…", "body": {…}},
 "error": null}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, UsageError, readable
from paceline.json_files import parse_text_json

URLS = ("/v1/chat/completions", "/v1/responses", "/v1/completions")
"""Endpoints that requests of a batch may use."""

Batch = Mapping[str, Sequence[Any]]
"""Rows by column, as in Ray Data. All values are text, so that rows have one type."""

ID_MARK = "batch_req_"
"""What the ids of results begin with; a hash of the line follows."""
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class BatchLine:
    """One line of an input file.

    number: of the line, from 1. id: a hash of the line. error: code and message if the line is no
    request; then `url` and `body` mean nothing, and `custom_id` may be missing.
    """

    number: int
    id: str
    custom_id: str | None = None
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    error: tuple[str, str] | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a line. status, request_id, body: of the response; unset if there is none."""

    line: BatchLine
    status: int = 0
    request_id: str = ""
    body: Any = None

    @property
    def failed(self) -> bool:
        """Whether there is no answer."""
        return self.status != 200

    def as_json(self) -> dict[str, Any]:
        """The line of an output file. `id` comes first, so that torn lines are recognised by it."""
        line = {"id": self.line.id, "custom_id": self.line.custom_id}
        if self.line.error is not None:
            code, message = self.line.error
            return {**line, "response": None, "error": {"code": code, "message": message}}
        status = {"status_code": self.status, "request_id": self.request_id}
        return {**line, "response": {**status, "body": self.body}, "error": None}


def read_lines(path: Path) -> Iterator[BatchLine]:
    """Yield the lines of an input file, without blank ones.

    Raises UsageError if the file cannot be read.
    """
    with readable(f"the batch file {path}"), path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            content = (data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data).strip()
            if content:
                yield _line(number, content)


def check_custom_ids(path: Path) -> int:
    """Count the lines of an input file. Raises UsageError if there are none, none is a request, or
    two share a custom_id."""
    first: dict[str, int] = {}
    lines, errors = 0, []
    for line in read_lines(path):
        lines += 1
        if line.error is not None:
            errors.append(line.error[1])
        if line.custom_id is None:
            continue
        if line.custom_id in first:
            raise UsageError(
                f"lines {first[line.custom_id]} and {line.number} of {path} have the same "
                f"custom_id {line.custom_id[:100]!r}: give each request its own"
            )
        first[line.custom_id] = line.number
    if not lines:
        raise UsageError(f"the batch file {path} holds no requests")
    if len(errors) == lines:
        with path.open("rb") as file:
            gzipped = file.read(len(_GZIP)) == _GZIP
        why = "it is gzipped, unpack it first" if gzipped else errors[0]
        raise UsageError(f"the batch file {path} holds no requests: {why}")
    return lines


def _line(number: int, content: bytes) -> BatchLine:
    line_id = ID_MARK + hashlib.sha256(content).hexdigest()[:24]

    def broken(code: str, message: str, custom_id: str | None = None) -> BatchLine:
        return BatchLine(number, line_id, custom_id, error=(code, f"line {number}: {message}"))

    try:
        record = parse_text_json(content)
    except ValueError as error:
        return broken("invalid_json_line", f"this is {error}")
    if not isinstance(record, dict):
        return broken("invalid_json_line", "this is not a JSON object")
    custom_id = record.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return broken("missing_required_parameter", "'custom_id' must be a non-empty string")
    if record.get("method") != "POST":
        return broken("invalid_method", "'method' must be 'POST'", custom_id)
    if record.get("url") not in URLS:
        return broken("invalid_url", f"'url' must be one of {', '.join(URLS)}", custom_id)
    body = record.get("body")
    if not isinstance(body, dict):
        return broken("invalid_request", "'body' must be a JSON object", custom_id)
    if body.get("stream"):
        return broken(
            "invalid_request", "batch answers cannot be streamed: leave out 'stream'", custom_id
        )
    return BatchLine(number, line_id, custom_id, record["url"], body)


@dataclass(frozen=True)
class AnswersOf:
    """Arguments of the session that answers a batch file, in any process.

    model, method: see `paceline.load`; placement: more of its arguments. names: of the model in
    requests. max_batch, budget: see `paceline batch`. threads: None for torch's default.
    """

    model: str
    method: str
    names: Sequence[str]
    max_batch: int
    threads: int | None = None
    budget: int | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)


def row(line: BatchLine) -> dict[str, str]:
    """A request as sent to an actor."""
    return {"number": str(line.number), "request": json.dumps([line.url, line.body])}


def outcomes(batches: Iterable[Batch], waiting: dict[int, BatchLine]) -> Iterable[Outcome]:
    """Yield the outcome of each line once, and remove it from `waiting` (lines by number). Raises
    PacelineError for errors in the actors' arguments."""
    for batch in batches:
        for number, answer in zip(batch["number"], batch["answer"], strict=True):
            status, request_id, body, refusal = json.loads(answer)
            if refusal:
                raise PacelineError(refusal)
            # Ray repeats work whose results were lost with a machine.
            line = waiting.pop(int(number), None)
            if line is not None:
                yield Outcome(line, status, request_id, body)
