"""Requests of a batch file as rows of text, which travel to other processes and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import PacelineError
from paceline.serve.batch_lines import BatchLine, Outcome

__all__ = ["AnswersOf", "Batch", "outcomes", "row"]

Batch = Mapping[str, Sequence[Any]]
"""Rows by column, as in Ray Data. All values are text, so that rows have one type."""


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
    return {"number": str(line.number), "url": line.url, "body": json.dumps(line.body)}


def outcomes(batches: Iterable[Batch], waiting: dict[int, BatchLine]) -> Iterable[Outcome]:
    """Yield the outcome of each line once, and remove it from `waiting` (lines by number).

    Raises PacelineError for errors in the actors' arguments.
    """
    for batch in batches:
        columns = (batch[name] for name in ("number", "status", "request_id", "body", "refusal"))
        for number, status, request_id, body, refusal in zip(*columns, strict=True):
            if refusal:
                raise PacelineError(str(refusal))
            # Ray repeats work whose results were lost with a machine.
            line = waiting.pop(int(number), None)
            if line is not None:
                yield Outcome(line, int(status), str(request_id), json.loads(body))
