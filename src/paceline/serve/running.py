"""A request's text while the engine writes it."""

from __future__ import annotations

import copy
import logging
from contextlib import ExitStack
from time import monotonic

from paceline.serve.logs import log
from paceline.serve.metrics import Metrics
from paceline.serve.ticket import News, Ticket
from paceline.session import Session
from paceline.stats import Stats
from paceline.stream import Stream

__all__ = ["RunningText"]


class RunningText:
    """One text of a request, which joins the session's batch.

    Raises the error if it cannot.
    """

    def __init__(self, session: Session, ticket: Ticket, index: int) -> None:
        self.ticket, self.index = ticket, index
        order = ticket.orders[index]
        self._stream = Stream(session, order.prompt, order.references, order.options, order.chat)
        self._awaited = ExitStack()
        self._awaited.enter_context(self._stream.awaited())
        error = self._stream.completion.error
        if error is not None:
            self._awaited.close()
            raise error
        self._counted = Stats()
        self._first = self._last = 0.0

    def poll(self, metrics: Metrics) -> News | None:
        """News of the last round; None if there are none. Raises errors of the text."""
        chunks = self._stream.poll()
        self._measure(metrics)
        if not self._stream.ended:
            return News(self.index, chunks) if chunks else None
        completion = self._stream.completion
        metrics.text_ended(completion, self._last - self._first)
        if completion.unkept is not None:
            what = "answers not merged" if completion.unkept.kept else "answer not kept"
            log(what, level=logging.ERROR, reason=str(completion.unkept))
        return News(self.index, chunks, completion)

    def leave(self) -> None:
        """Free the text's place."""
        self._awaited.close()
        self._stream.close()

    def _measure(self, metrics: Metrics) -> None:
        stats, now = self._stream.stats, monotonic()
        if stats.rounds == self._counted.rounds:
            return
        metrics.played(self._counted, stats)
        self.ticket.tokens += stats.tokens - self._counted.tokens
        if not self._counted.tokens:
            self._first = now
            times = self.ticket.times
            if not times.first_token:
                times.first_token = now
                metrics.observe("time_to_first_token_seconds", now - times.arrived)
        else:
            metrics.observe("inter_token_latency_seconds", now - self._last)
        self._last = now
        self._counted = copy.copy(stats)
        self._counted.acceptance_histogram = stats.acceptance_histogram.copy()
        self._counted.depth_histogram = stats.depth_histogram.copy()
