"""The engine: one thread that runs all rounds. Requests join and leave between them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import TIMEOUT_MAX, Condition, Thread
from time import monotonic

from paceline.errors import UsageError
from paceline.serve.errors import (
    ApiError,
    bad_request,
    cut_off,
    failed,
    out_of_time,
    stopping,
    too_many,
)
from paceline.serve.heap import give_back
from paceline.serve.logs import log
from paceline.serve.metrics import Metrics
from paceline.serve.running import RunningText
from paceline.serve.settings import ServeSettings
from paceline.serve.ticket import News, Ticket, wake
from paceline.session import Session

__all__ = ["Engine"]

_TIDY = 60.0
"""Seconds of work after which free memory is returned to the system."""


class Engine:
    """Writes the texts of requests on one session, which nothing else may use meanwhile.

    Any thread may submit requests; all other work happens in the engine's own thread.
    """

    def __init__(self, session: Session, settings: ServeSettings, metrics: Metrics) -> None:
        self._session, self._settings, self._metrics = session, settings, metrics
        self._changed = Condition()
        self._waiting: deque[Ticket] = deque()
        self._texts: list[RunningText] = []
        self._draining = self._cut = False
        self._tidied = monotonic()
        self._thread = Thread(target=self._run, name="paceline-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the engine's thread is running."""
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        return self.alive and not self._draining

    @property
    def load(self) -> tuple[int, int]:
        """Texts being written, and requests waiting."""
        return len(self._texts), len(self._waiting)

    def submit(self, ticket: Ticket) -> None:
        """Accept a request. Raises ApiError if the queue is full or the server is stopping."""
        with self._changed:
            if self._draining:
                raise self._turned_away(stopping())
            room, queued = self._settings.max_batch - len(self._texts), 0
            for each in self._waiting:
                queued += room <= 0  # the others join before the next round
                room -= each.texts_waiting
            if room <= 0 and queued >= self._settings.max_queue:
                raise self._turned_away(too_many())
            self._waiting.append(ticket)
            self._changed.notify_all()

    def drain(self) -> None:
        """Accept no more requests."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def stop(self, grace: float) -> None:
        """Accept no more requests, finish current ones, and cut off what is left after `grace`
        seconds. Returns when the thread has ended."""
        self.drain()
        if self._thread.ident is None:
            return
        self._thread.join(min(grace, TIMEOUT_MAX))
        self.cut()
        self._thread.join()

    def cut(self) -> None:
        """Cut off all requests."""
        self.drain()
        self._cut = True

    def _turned_away(self, error: ApiError) -> ApiError:
        self._metrics.rejected(error.code or "")
        return error

    def _run(self) -> None:
        while self._has_work():
            touched: set[Ticket] = set()
            try:
                self._send_away(touched)
                self._admit(touched)
                if self._texts:
                    self._play(touched)
            except BaseException as error:  # such as a panic in a library written in Rust
                log("round failed", level=logging.ERROR, error=error)
                for ticket in {text.ticket for text in self._texts}:
                    self._fail(ticket, failed(), touched)
            wake(touched)
            self._tidy()

    def _tidy(self) -> None:
        now = monotonic()
        if now - self._tidied > _TIDY:
            give_back()
            self._tidied = now

    def _has_work(self) -> bool:
        """Wait for work; False if there will be none."""
        with self._changed:
            while not (self._texts or self._waiting or self._draining):
                self._changed.wait()
            return bool(self._texts or self._waiting)

    def _send_away(self, touched: set[Ticket]) -> None:
        """Remove requests that are cancelled or out of time, or all when the server is cut off."""
        now = monotonic()
        with self._changed:
            tickets = {*self._waiting, *(text.ticket for text in self._texts)}
        for ticket in tickets:
            if ticket.cancelled:
                self._fail(ticket, cut_off(), touched, outcome="cancelled")
            elif self._cut:
                self._fail(ticket, cut_off(), touched, outcome="cut off")
            elif now > ticket.deadline:
                late = out_of_time(self._settings.time_limit)
                self._fail(ticket, late, touched, outcome="out of time")

    def _admit(self, touched: set[Ticket]) -> None:
        """Let texts of waiting requests join, in order, while there is room."""
        while len(self._texts) < self._settings.max_batch:
            with self._changed:
                if not self._waiting:
                    return
                ticket = self._waiting[0]
                index = ticket.begin_next()
                if not ticket.texts_waiting:
                    self._waiting.popleft()
            if index == 0:
                self._metrics.observe(
                    "request_queue_time_seconds", ticket.times.begun - ticket.times.arrived
                )
            try:
                self._texts.append(RunningText(self._session, ticket, index))
            except BaseException as error:  # else its ticket, no longer waiting, would be lost
                self._fail(ticket, _as_answer(error), touched)

    def _play(self, touched: set[Ticket]) -> None:
        """Play one round, and deliver every text's news."""
        self._session.texts.batch.play()
        for text in list(self._texts):
            if text.ticket.failed:
                continue  # another text of the request has just failed
            try:
                news = text.poll(self._metrics)
            except Exception as error:
                self._fail(text.ticket, _as_answer(error), touched)
                continue
            if news is not None:
                self._deliver(text, news, touched)

    def _deliver(self, text: RunningText, news: News, touched: set[Ticket]) -> None:
        ticket = text.ticket
        if news.completion is not None:
            self._texts.remove(text)
            text.leave()
            ticket.texts_left -= 1
            if not ticket.texts_left:
                self._close(ticket, "complete")
        ticket.put(news)
        touched.add(ticket)

    def _fail(
        self, ticket: Ticket, error: ApiError, touched: set[Ticket], outcome: str = "failed"
    ) -> None:
        """Fail a request: all its texts leave."""
        for text in [text for text in self._texts if text.ticket is ticket]:
            self._texts.remove(text)
            _quietly(text.leave)
        with self._changed:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
        if not ticket.failed:
            ticket.fail(error)
            self._close(ticket, outcome)
        touched.add(ticket)

    def _close(self, ticket: Ticket, outcome: str) -> None:
        ticket.times.ended = monotonic()
        ticket.outcome = outcome
        self._metrics.request_ended(ticket)


def _as_answer(error: BaseException) -> ApiError:
    """The error that a client receives for an error in its text."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UsageError):
        return bad_request(str(error))
    log("text failed", level=logging.ERROR, error=error)
    return failed()


def _quietly(leave: Callable[[], None]) -> None:
    """Close a text; a failure to do so must not stop the engine."""
    try:
        leave()
    except BaseException as error:
        log("text could not be closed", level=logging.ERROR, error=error)
