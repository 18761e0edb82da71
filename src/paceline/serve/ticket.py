"""A request on its way through the engine, and the news that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from paceline.messages import Reference
from paceline.options import Options
from paceline.serve.errors import ApiError
from paceline.stream import Chunk, Completion


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

    index: of the text among the request's orders. chunks: newly certain text. completion: if the
    text has ended.
    """

    index: int
    chunks: Sequence[Chunk] = ()
    completion: Completion | None = None


@dataclass(eq=False)
class Ticket:
    """A request that the engine's thread works on, and whose news its handler picks up.

    deadline, arrived, begun, first_token, ended: by the monotonic clock; 0 for what has not happened
    yet. at_first: tokens of the first round. cancelled: nobody waits for the answer any more; the
    engine checks this before every round. texts_ended: how many of its texts have ended. outcome,
    tokens, asked: for the log: how the request ended, how many tokens were written, and, if prompts
    are logged, what was asked. completions: of the texts whose end was taken by `news`. held: the
    compiled constraint, which the engine must not have to wait for. inbox: filled in the event loop
    by `deliver`; after an error nothing follows.

    Unread news is bounded by the texts' tokens, so a slow reader neither blocks the engine nor
    fills its memory.
    """

    name: str
    orders: Sequence[Order]
    deadline: float
    asked: Any = None
    arrived: float = field(default_factory=monotonic)
    at_first: int = 0
    begun: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0
    cancelled: bool = False
    texts_ended: int = 0
    outcome: str = ""
    tokens: int = 0
    completions: dict[int, Completion] = field(default_factory=dict)
    held: object = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    inbox: asyncio.Queue[News | ApiError] = field(default_factory=asyncio.Queue)
    _next: int = 0

    @property
    def unheard(self) -> int:
        """Number of texts whose end was not taken by `news`."""
        return len(self.orders) - len(self.completions)

    @property
    def texts_waiting(self) -> int:
        """Number of texts that have not joined yet."""
        return len(self.orders) - self._next

    def begin_next(self) -> int:
        """The index of the next text, which joins now."""
        self.begun = self.begun or monotonic()
        self._next += 1
        return self._next - 1

    async def news(self) -> News:
        """Wait for news and take it. Raises ApiError if the request has failed."""
        news = await self.inbox.get()
        if isinstance(news, ApiError):
            raise news
        if news.completion is not None:
            self.completions[news.index] = news.completion
        return news

    async def heard(self, patience: float) -> list[News]:
        """The next news, as soon as there are any; none if there are none for so many seconds.
        Raises ApiError like `news`."""
        try:
            async with asyncio.timeout(patience):
                return [await self.news()]
        except TimeoutError:
            return []

    async def completed(self) -> list[Completion]:
        """Wait for the end of all texts, whatever the news. Raises ApiError like `news`."""
        while self.unheard:
            await self.news()
        return [self.completions[place] for place in range(len(self.orders))]


def deliver(letters: list[tuple[Ticket, News | ApiError]]) -> None:
    """Hand news to their requests' handlers, with one call per event loop. They leave the list as
    they are handed over: after an error, the others are still there."""
    while letters:
        loop = letters[0][0].loop
        with suppress(RuntimeError):  # the loop is closed, and its handlers are gone
            own = [letter for letter in letters if letter[0].loop is loop]
            loop.call_soon_threadsafe(_hand_out, own)
        letters[:] = [letter for letter in letters if letter[0].loop is not loop]


def _hand_out(letters: Sequence[tuple[Ticket, News | ApiError]]) -> None:
    for ticket, news in letters:
        ticket.inbox.put_nowait(news)
