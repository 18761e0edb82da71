"""Compiles the constraints of requests in a few threads of its own.

A short constraint can take minutes, and nothing can stop it. So no other work shares these threads,
a request waits for a limited time, and while all of them are stuck, further constraints are refused
at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from math import inf
from threading import Lock
from time import monotonic

from paceline.constraints import Constraint
from paceline.constraints.own_thread import in_own_thread
from paceline.serve.errors import ApiError, bad_request, failed, for_now, stopping
from paceline.serve.logs import log_error
from paceline.serve.ticket import Order
from paceline.session import Session

_PATIENCE = 10.0
"""Seconds after which a constraint is given up; its thread works on."""
_THREADS = 2
"""Each takes a core from the engine for as long as it works."""
STUCK = "compilers_stuck"
"""Code of the error for a constraint that no thread is free for."""
_SLOW = "the constraint takes too long to compile: use a simpler schema, pattern or grammar"


def _stuck() -> ApiError:
    what = (
        "earlier constraints take too long to compile, so new ones cannot begin: try again later "
        "or leave the constraint out"
    )
    return for_now(503, what, STUCK, seconds=10)


@dataclass(eq=False)
class _Job:
    """A constraint to compile. began: 0 while it waits for a thread, then `inf` until the vocabulary
    is read, which is not the constraint's fault. wanted: by how many requests that wait for it."""

    work: Callable[[], object]
    began: float = 0.0
    wanted: int = 0
    outcome: Future[object] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.outcome.set_running_or_notify_cancel()  # who leaves does not cancel it for others

    def end(self, outcome: object) -> None:
        """Tell those who wait how it went; nothing happens a second time. outcome: what `work`
        returned, or an Exception."""
        if self.outcome.done():
            return
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class Compiler:
    """Compiles constraints for a session, which keeps them. Any event loop may ask.

    patience: seconds for which a constraint may be compiled. threads: most at a time.
    """

    def __init__(
        self, session: Session, patience: float = _PATIENCE, threads: int = _THREADS
    ) -> None:
        self._session, self._patience, self._most = session, patience, threads
        self._lock = Lock()
        self._jobs: dict[Constraint, _Job] = {}  # in the order in which they came
        self._closed = False

    async def compiled(self, order: Order, deadline: float) -> object:
        """Wait until a text can begin. To be held until it has begun: so many constraints may be
        compiled meanwhile that the session no longer keeps this one.

        deadline: by the monotonic clock. Raises ApiError if it takes too long, and UsageError for
        a constraint that does not compile.
        """
        constraint = order.options.constraint
        if constraint is None:
            return ()
        if (compiled := self._session.compiled(constraint)) is not None:
            return compiled
        with self._lock:
            if self._closed:
                raise stopping()
            work = partial(self._session.texts_of, order.options, order.prompt)
            job = self._jobs.setdefault(constraint, _Job(work))
            job.wanted += 1
            self._begin()
        waiting = asyncio.wrap_future(job.outcome)
        try:
            while not waiting.done():
                left = min(deadline, self._given_up_at(job)) - monotonic()
                if left <= 0 and job.began:
                    raise bad_request(_SLOW, code="slow_constraint")
                if left <= 0:
                    raise _stuck()
                await asyncio.wait({waiting}, timeout=min(left, self._patience))
            return waiting.result()
        finally:
            waiting.cancel()
            with self._lock:
                job.wanted -= 1

    def close(self) -> None:
        """Turn away all requests that wait, and those to come."""
        with self._lock:
            self._closed = True
            for job in self._jobs.values():
                job.end(stopping())

    def _given_up_at(self, job: _Job) -> float:
        """When it is too late for a job: it takes too long, or all others that have a thread do."""
        with self._lock:
            began = [each.began for each in self._jobs.values() if each.began]
            since = monotonic() if len(began) < self._most else max(began)
            return (job.began or since) + self._patience

    def _begin(self) -> None:
        """Begin what is still wanted, in a thread for each while there are any; needs the lock."""
        self._jobs = {key: job for key, job in self._jobs.items() if job.began or job.wanted}
        free = self._most - sum(job.began > 0 for job in self._jobs.values())
        waiting = [(key, job) for key, job in self._jobs.items() if not job.began]
        for constraint, job in waiting[:free]:
            job.began = inf
            try:
                in_own_thread(partial(self._compile, constraint, job))
            except RuntimeError:  # there can be no more threads
                del self._jobs[constraint]
                job.end(_stuck())

    def _compile(self, constraint: Constraint, job: _Job) -> None:
        outcome: object
        try:
            self._session.read_vocabulary()
            job.began = monotonic()
            outcome = job.work()
        except Exception as error:
            outcome = error
        except BaseException as error:  # such as a panic in a library written in Rust
            log_error("constraint failed", error=error)
            outcome = failed()
        with self._lock:
            del self._jobs[constraint]  # later requests find it in the session
            job.end(outcome)
            self._begin()
