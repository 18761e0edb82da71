"""Answer the requests of a batch file by the server's application, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp

from paceline.serve.app import Server, create_app
from paceline.serve.batch_lines import BatchLine, Outcome
from paceline.serve.batch_results import Results
from paceline.serve.compiler import STUCK
from paceline.serve.inside import post
from paceline.serve.settings import ServeSettings
from paceline.session import Session

_AHEAD = 2
"""Requests in progress per text being written, so that no slot waits for a request."""

_UNREFUSED = 1 << 30
"""Most waiting requests: no limit, since `run_batch` decides how many are in progress."""

_DAY = 86_400.0
"""Seconds within which a request must be answered; OpenAI gives a batch as long."""

_WAIT, _MOST_WAITS = 10.0, 60
"""Seconds until a constraint is tried again that no thread was free for, and how often."""


def batch_server(session: Session, names: Sequence[str], max_batch: int) -> Server:
    """The server that answers a batch on a session. names: of the model in requests. max_batch:
    most texts written at a time."""
    settings = ServeSettings(max_batch=max_batch, max_queue=_UNREFUSED, time_limit=_DAY, grace=0.0)
    return Server(session, names, settings)


async def run_batch(server: Server, lines: Iterable[BatchLine], results: Results) -> None:
    """Answer all lines that have no result yet, and write results as they complete. If this is
    cancelled, unwritten results are lost.

    Raises UsageError if a result cannot be written, or belongs to another request.
    """
    app, waiting = create_app(server), results.unanswered(lines)
    to_come = iter(range(_AHEAD * server.settings.max_batch - 1))  # workers

    async def work(workers: asyncio.TaskGroup) -> None:
        for line in waiting:
            if next(to_come, None) is not None:  # no more of them than there are lines
                workers.create_task(work(workers))
            results.write(await outcome_of(app, line))

    server.engine.start()
    try:
        async with asyncio.TaskGroup() as workers:
            workers.create_task(work(workers))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        await server.stop()


async def outcome_of(app: ASGIApp, line: BatchLine) -> Outcome:
    """Answer a line, unless it is no request."""
    if line.error is not None:
        return Outcome(line)
    reply = await post(app, line.url, line.body)
    for _ in range(_MOST_WAITS):
        if reply.status != 503 or reply.body["error"]["code"] != STUCK:
            break
        await asyncio.sleep(_WAIT)  # nobody else would ask again
        reply = await post(app, line.url, line.body)
    return Outcome(line, *reply)
