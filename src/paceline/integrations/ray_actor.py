"""One model for `paceline batch --ray`, as an actor of Ray Data holds it. Imports nothing of Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import PacelineError
from paceline.serve.batch_lines import BatchLine, Outcome

__all__ = ["Answering", "AnswersOf", "outcomes", "row"]

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


class Answering:
    """Answers the requests of a batch file. What is wrong with the arguments is in every answer:
    raised here, it would come with the traces of two processes, and after three more tries."""

    def __init__(self, given: AnswersOf) -> None:
        # What an actor needs is not needed where its rows come from.
        import torch

        from paceline.front import load
        from paceline.serve.app import create_app
        from paceline.serve.batch_run import batch_server

        # Older Rays take the thread's event loop for the answers, which uvloop does not make.
        asyncio.set_event_loop(asyncio.new_event_loop())
        self._refusal = ""
        if given.threads is not None:
            torch.set_num_threads(given.threads)
        try:
            session = load(given.model, given.method, **given.placement)
        except PacelineError as error:
            self._refusal = str(error)
            return
        except Exception as error:  # Ray would start the actor for ever
            self._refusal = f"an actor cannot start: {type(error).__name__}: {error}"
            return
        session.budget = given.budget
        server = batch_server(session, given.names, given.max_batch)
        self._app = create_app(server)
        server.engine.start()

    async def __call__(self, batch: Batch) -> dict[str, list[str]]:
        """Rows made by `row`; those of the answers are read by `outcomes`."""
        from paceline.serve.batch_run import answered_together

        lines = [
            BatchLine(int(number), "", url=str(url), body=json.loads(body))
            for number, url, body in zip(batch["number"], batch["url"], batch["body"], strict=True)
        ]
        if self._refusal:
            found = [Outcome(line) for line in lines]
        else:
            found = await answered_together(self._app, lines)
        return {
            "number": [str(each.line.number) for each in found],
            "status": [str(each.status) for each in found],
            "request_id": [each.request_id for each in found],
            "body": [json.dumps(each.body) for each in found],
            "refusal": [self._refusal] * len(found),
        }


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
