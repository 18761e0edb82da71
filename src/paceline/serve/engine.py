"""The engine: one thread that runs all rounds. Requests join and leave between them."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from functools import partial
from threading import TIMEOUT_MAX, Condition, Thread
from time import monotonic

from paceline.records import Round
from paceline.serve.errors import ApiError, failed, shown, stopping, too_many
from paceline.serve.heap import give_back
from paceline.serve.logs import log_error
from paceline.serve.metrics import Metrics
from paceline.serve.settings import ServeSettings
from paceline.serve.ticket import News, Ticket, deliver
from paceline.session import Session
from paceline.stream import Stream

_TIDY = 60.0
"""Seconds of work after which free memory is returned to the system."""


class RunningText(Stream):
    """One text of a request, which joins the session's batch. Raises the error if it cannot."""

    def __init__(self, session: Session, ticket: Ticket, index: int, metrics: Metrics) -> None:
        order = ticket.orders[index]
        super().__init__(
            partial(session.begin, order.prompt, order.references, order.options, order.chat)
        )
        self.ticket, self.index, self._metrics = ticket, index, metrics
        self._first = self._last = 0.0
        self._at_first = 0  # tokens of the first round
        self.begun()
        self._open = ExitStack()
        self._open.callback(self.close)
        self._open.enter_context(self.awaited())

    def news(self) -> News | None:
        """News of the last round; None if there are none. Raises errors of the text."""
        chunks = self.poll()
        if not self.ended:
            return News(self.index, chunks) if chunks else None
        completion = self.completion
        later = len(completion.tokens) - self._at_first
        self._metrics.text_ended(completion, self._last - self._first, later)
        if completion.unkept is not None:
            what = "answers not merged" if completion.unkept.kept else "answer not kept"
            log_error(what, reason=str(completion.unkept))
        return News(self.index, chunks, completion)

    def leave(self) -> None:
        """Free the text's place."""
        self._open.close()

    def hear(self, round: Round) -> bool:
        """See `Stream.hear`; the round is also counted and timed."""
        if not super().hear(round):
            return False
        now = monotonic()
        self._metrics.played(round)
        self.ticket.tokens += len(round.path.tokens)
        if self._first:
            self._metrics.observe("inter_token_latency_seconds", now - self._last)
        else:
            self._first, self._at_first = now, len(round.path.tokens)
            self._metrics.count("prompt_tokens", self.completion.prompt_tokens)
            self._metrics.count("prompt_tokens_cached", self.stats.reused)
            if not self.ticket.first_token:
                self.ticket.first_token, self.ticket.at_first = now, self._at_first
                self._metrics.observe("time_to_first_token_seconds", now - self.ticket.arrived)
        self._last = now
        return True


class Engine:
    """Writes the texts of requests on one session, which nothing else may use meanwhile.

    Any thread may submit requests; all other work happens in the engine's own thread.
    """

    def __init__(self, session: Session, settings: ServeSettings, metrics: Metrics) -> None:
        self._session, self._settings, self._metrics = session, settings, metrics
        self._changed = Condition()
        self._waiting: deque[Ticket] = deque()
        self._texts: list[RunningText] = []
        self._news: list[tuple[Ticket, News | ApiError]] = []  # not delivered yet
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
            if self._thread.ident is not None and not self.alive:
                raise failed()
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

    def stop(self) -> None:
        """Accept no more requests, finish current ones, and cut off what is left after the grace
        period. Returns when the thread has ended."""
        self.drain()
        if self._thread.ident is None:
            return
        self._thread.join(min(self._settings.grace, TIMEOUT_MAX))
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
            try:
                deliver(self._news)
                self._tidy()
                self._send_away()
                self._admit()
                if self._texts:
                    self._play()
            except BaseException as error:  # such as a panic in a library written in Rust
                log_error("round failed", error=error)
                for ticket in {text.ticket for text in self._texts}:
                    self._fail(ticket, failed())

    def _tidy(self) -> None:
        now = monotonic()
        if now - self._tidied > _TIDY:
            self._tidied = now
            give_back()

    def _has_work(self) -> bool:
        """Wait for work; False if there will be none."""
        with self._changed:
            while not (self._texts or self._waiting or self._news or self._draining):
                self._changed.wait()
            return bool(self._texts or self._waiting or self._news)

    def _send_away(self) -> None:
        """Remove requests that are cancelled or out of time, or all when the server is cut off."""
        now = monotonic()
        with self._changed:
            tickets = {*self._waiting, *(text.ticket for text in self._texts)}
        for ticket in tickets:
            if ticket.cancelled or self._cut:
                what = "the server stopped before the answer was complete"
                outcome = "cancelled" if ticket.cancelled else "cut off"
                self._fail(ticket, ApiError(503, what, code="stopping"), outcome)
            elif now > ticket.deadline:
                limit = f"{self._settings.time_limit:g} seconds"
                what = f"the answer was not complete after {limit}: ask for fewer tokens"
                never = {"X-Should-Retry": "false"}  # it would take as long again
                late = ApiError(408, what, code="timeout", headers=never)
                self._fail(ticket, late, "out of time")

    def _admit(self) -> None:
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
                waited = ticket.begun - ticket.arrived
                self._metrics.observe("request_queue_time_seconds", waited)
            try:
                self._texts.append(RunningText(self._session, ticket, index, self._metrics))
            except BaseException as error:  # else its ticket, no longer waiting, would be lost
                self._fail(ticket, error)

    def _play(self) -> None:
        """Play one round, and deliver every text's news."""
        self._session.texts.play()
        for text in list(self._texts):
            if text.ticket.outcome:
                continue  # another text of the request has just failed
            try:
                news = text.news()
            except BaseException as error:  # its own, whatever it is
                self._fail(text.ticket, error)
                continue
            if news is not None:
                self._deliver(text, news)

    def _deliver(self, text: RunningText, news: News) -> None:
        ticket = text.ticket
        if news.completion is not None:
            self._texts.remove(text)
            text.leave()
            ticket.texts_ended += 1
            if ticket.texts_ended == len(ticket.orders):
                self._close(ticket, "complete")
        self._news.append((ticket, news))

    def _fail(self, ticket: Ticket, reason: BaseException, outcome: str = "failed") -> None:
        """Fail a request: all its texts leave."""
        answer = shown(reason)
        if answer is not reason and answer.status >= 500:
            log_error("text failed", error=reason)
        # The frames of an error, and of those that led to it, hold what the pass has computed and
        # the text, which holds the error: until garbage is collected, gigabytes may gather.
        link: BaseException | None = reason
        while link is not None:
            link.__traceback__, link = None, link.__context__
        for text in [text for text in self._texts if text.ticket is ticket]:
            self._texts.remove(text)
            self._metrics.text_left("error" if outcome == "failed" else "abort")
            try:
                text.leave()
            except BaseException as error:  # which must not stop the engine
                log_error("text could not be closed", error=error)
        with self._changed:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
        if not ticket.outcome:
            self._close(ticket, outcome)
            self._news.append((ticket, answer))

    def _close(self, ticket: Ticket, outcome: str) -> None:
        ticket.outcome, ticket.ended = outcome, monotonic()
        self._metrics.observe("e2e_request_latency_seconds", ticket.ended - ticket.arrived)
