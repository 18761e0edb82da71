"""A request on its way through the engine, and the news that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Any

from paceline.completion import Completion
from paceline.messages import Reference
from paceline.options import Options
from paceline.serve.errors import ApiError
from paceline.text import Chunk

__all__ = ["News", "Order", "Ticket", "Times", "wake"]


@dataclass(frozen=True)
class Order:
    """One text to write.

    prompt: token ids. references: texts that it may resemble. options: including its seed. chat:
    whether the prompt is a conversation.
    """

    prompt: Sequence[int]
    options: Options
    references: Sequence[Reference] = ()
    chat: bool = False


@dataclass(frozen=True)
class News:
    """What a round brought for one text of a request.

    index: of the text among the request's orders. chunks: newly certain text.
    completion: if the text has ended.
    """

    index: int
    chunks: Sequence[Chunk] = ()
    completion: Completion | None = None


@dataclass
class Times:
    """Times of a request, by the monotonic clock; 0 for what has not happened yet."""

    arrived: float = field(default_factory=monotonic)
    begun: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0


class Ticket:
    """Where the engine's thread leaves news of a request, and its handler picks it up.

    Unread news is bounded by the texts' tokens, so a slow reader neither blocks the engine nor
    fills its memory.
    """

    def __init__(self, name: str, orders: Sequence[Order], deadline: float) -> None:
        self.name = name
        self.orders = list(orders)
        self.deadline = deadline
        self.times = Times()
        self.cancelled = False
        """Nobody waits for the answer any more; the engine checks this before every round."""
        self.texts_left = len(self.orders)
        self.outcome = ""
        self.tokens = 0
        self.asked: Any = None
        self.answers: dict[int, str] = {}
        """For the log: how the request ended, how many tokens were written, and, if prompts are
        logged, what was asked and answered."""
        self.held: object = None
        """The compiled constraint, which the engine must not have to wait for."""
        self.loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._lock = Lock()
        self._news: list[News] = []
        self._error: ApiError | None = None
        self._next = 0

    @property
    def failed(self) -> bool:
        """Whether the request has failed, so that no more news follows."""
        return self._error is not None

    @property
    def texts_waiting(self) -> int:
        """Number of texts that have not joined yet."""
        return len(self.orders) - self._next

    def begin_next(self) -> int:
        """Let the next text join; returns its index."""
        self.times.begun = self.times.begun or monotonic()
        self._next += 1
        return self._next - 1

    def put(self, news: News) -> None:
        """Leave news; called by the engine, which then wakes the handler."""
        if self.asked is not None and news.completion is not None:
            self.answers[news.index] = news.completion.text
        with self._lock:
            self._news.append(news)

    def fail(self, error: ApiError) -> None:
        """End the news with an error; the first one counts."""
        with self._lock:
            self._error = self._error or error

    async def news(self) -> list[News]:
        """Wait for news and take it. Raises ApiError if the request has failed."""
        while True:
            with self._lock:
                self._ready.clear()
                news, self._news = self._news, []
                if not news and self._error is not None:
                    raise self._error
            if news:
                return news
            await self._ready.wait()

    def ring(self) -> None:
        """Wake the handler; called in its event loop."""
        self._ready.set()


def wake(tickets: Iterable[Ticket]) -> None:
    """Wake the handlers of these requests, with one call per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
    for ticket in tickets:
        loops.setdefault(ticket.loop, []).append(ticket)
    for loop, waiting in loops.items():
        try:
            loop.call_soon_threadsafe(_ring_all, waiting)
        except RuntimeError:  # the loop is closed, and its handlers are gone
            continue


def _ring_all(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.ring()
