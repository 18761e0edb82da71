"""A request on its way through the engine, and the news that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any

from paceline.completion import Completion
from paceline.messages import Reference
from paceline.options import Options
from paceline.serve.errors import ApiError
from paceline.text import Chunk


@dataclass(frozen=True)
class Order:
    """One text to write.

    prompt: token ids. options: including its seed. references: texts that it may resemble. chat:
    whether the prompt is a conversation. echo: the prompt, if the answer repeats it.
    """

    prompt: Sequence[int]
    options: Options
    references: Sequence[Reference] = ()
    chat: bool = False
    echo: str = ""


@dataclass(frozen=True)
class News:
    """What a round brought for one text of a request.

    index: of the text among the request's orders. chunks: newly certain text.
    completion: if the text has ended.
    """

    index: int
    chunks: Sequence[Chunk] = ()
    completion: Completion | None = None


class Ticket:
    """Where the engine's thread leaves news of a request, and its handler picks it up.

    Unread news is bounded by the texts' tokens, so a slow reader neither blocks the engine nor
    fills its memory.
    """

    def __init__(self, name: str, orders: Sequence[Order], deadline: float) -> None:
        self.name = name
        self.orders = list(orders)
        self.deadline = deadline
        # By the monotonic clock; 0 for what has not happened yet.
        self.arrived = monotonic()
        self.begun = self.first_token = self.ended = 0.0
        self.cancelled = False
        """Nobody waits for the answer any more; the engine checks this before every round."""
        self.texts_left = len(self.orders)
        self.outcome = ""
        self.tokens = 0
        self.asked: Any = None
        """For the log: how the request ended, how many tokens were written, and, if prompts are
        logged, what was asked."""
        self.completions: dict[int, Completion] = {}
        self.unheard = len(self.orders)
        """Texts whose end was not taken by `news`."""
        self.held: object = None
        """The compiled constraint, which the engine must not have to wait for."""
        self.loop = asyncio.get_running_loop()
        self.ready = asyncio.Event()
        """Set in the event loop when there are news."""
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
        """The index of the next text, which joins now."""
        self.begun = self.begun or monotonic()
        self._next += 1
        return self._next - 1

    def put(self, news: News) -> None:
        """Leave news; called by the engine, which then wakes the handler."""
        if news.completion is not None:
            self.completions[news.index] = news.completion
        with self._lock:
            self._news.append(news)

    def fail(self, error: ApiError) -> None:
        """End the news with an error."""
        with self._lock:
            self._error = error

    async def news(self) -> list[News]:
        """Wait for news and take it. Raises ApiError if the request has failed."""
        while True:
            with self._lock:
                self.ready.clear()
                news, self._news = self._news, []
                if not news and self._error is not None:
                    raise self._error
            if news:
                self.unheard -= sum(each.completion is not None for each in news)
                return news
            await self.ready.wait()

    async def completed(self) -> list[Completion]:
        """Wait for the end of all texts, whatever the news. Raises ApiError like `news`."""
        while self.unheard:
            await self.news()
        return [self.completions[place] for place in range(len(self.orders))]


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
        ticket.ready.set()
