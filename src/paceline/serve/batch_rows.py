"""Requests of a batch file on their way to other processes and back, as rows of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import PacelineError
from paceline.serve.batch_lines import BatchLine, Outcome

__all__ = ["AnswersOf", "Batch", "outcomes", "row"]

Batch = Mapping[str, Sequence[Any]]
"""Rows by column, as Ray Data hands them out. Everything is text, so that rows have one type."""


@dataclass(frozen=True)
class AnswersOf:
    """What answers the requests of a batch file, wherever it is opened.

    model, method: see `paceline.load`; placement: more of its arguments. names: that the model
    answers to. max_batch, budget: see `paceline batch`. threads: None for torch's choice.
    """

    model: str
    method: str
    names: Sequence[str]
    max_batch: int
    threads: int | None = None
    budget: int | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)


def row(line: BatchLine) -> dict[str, str]:
    """A request as an actor gets it."""
    return {"number": str(line.number), "url": line.url, "body": json.dumps(line.body)}


def outcomes(batches: Iterable[Batch], waiting: dict[int, BatchLine]) -> Iterable[Outcome]:
    """What came of lines, each once; these leave `waiting`, by the numbers of lines.

    Raises PacelineError for what is wrong with the arguments of the actors.
    """
    for batch in batches:
        columns = (batch[name] for name in ("number", "status", "request_id", "body", "refusal"))
        for number, status, request_id, body, refusal in zip(*columns, strict=True):
            if refusal:
                raise PacelineError(str(refusal))
            # Ray does work again whose results were lost with a machine.
            line = waiting.pop(int(number), None)
            if line is not None:
                yield Outcome(line, int(status), str(request_id), json.loads(body))
