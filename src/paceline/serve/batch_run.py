"""Answer the requests of a batch file by the server's application, without a server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from starlette.types import ASGIApp

from paceline.serve.app import Server, create_app
from paceline.serve.batch_lines import BatchLine, Outcome
from paceline.serve.batch_results import Results
from paceline.serve.inside import post
from paceline.serve.settings import ServeSettings
from paceline.session import Session

_AHEAD = 2
"""Requests in progress per text being written, so that no slot waits for a request."""

_UNREFUSED = 1 << 30
"""Most waiting requests: no limit, since `run_batch` decides how many are in progress."""

_DAY = 86_400.0
"""Seconds within which a request must be answered; OpenAI gives a batch as long."""


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
            self.tokens += outcome.body["usage"]["completion_tokens"]


Heard = Callable[[BatchCounts], None]


def batch_server(session: Session, names: Sequence[str], max_batch: int) -> Server:
    """The server that answers a batch on a session. names: of the model in requests.

    max_batch: most texts written at a time.
    """
    settings = ServeSettings(max_batch=max_batch, max_queue=_UNREFUSED, time_limit=_DAY, grace=0.0)
    return Server(session, names, settings)


async def run_batch(
    server: Server, lines: Iterable[BatchLine], results: Results, heard: Heard
) -> BatchCounts:
    """Answer all lines that have no result yet, and write results as they complete.

    heard: called after each. If this is cancelled, unwritten results are lost.

    Raises UsageError if a result cannot be written, or belongs to another request.
    """
    app, counts, waiting = create_app(server), BatchCounts(), iter(lines)

    async def work() -> None:
        for line in waiting:
            if results.has(line):
                counts.known += 1
                continue
            outcome = await _outcome(app, line)
            results.write(outcome)
            counts.add(outcome)
            heard(counts)

    server.engine.start()
    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(_AHEAD * server.settings.max_batch):
                workers.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        await server.stop()
    return counts


def take_down(found: Iterable[Outcome], results: Results, known: int, heard: Heard) -> BatchCounts:
    """Write results from elsewhere; see `run_batch`. known: lines that already had a result."""
    counts = BatchCounts(known)
    for outcome in found:
        results.write(outcome)
        counts.add(outcome)
        heard(counts)
    return counts


async def answered_together(app: ASGIApp, lines: Iterable[BatchLine]) -> list[Outcome]:
    """The outcomes of some lines, answered concurrently."""
    return await asyncio.gather(*(_outcome(app, line) for line in lines))


async def _outcome(app: ASGIApp, line: BatchLine) -> Outcome:
    if line.error is not None:
        return Outcome(line)
    reply = await post(app, line.url, line.body)
    return Outcome(line, reply.status, reply.request_id, reply.body)


def _code(outcome: Outcome) -> str:
    if outcome.line.error is not None:
        return outcome.line.error[0]
    error = outcome.body["error"]
    return str(error["code"] or error["type"])
