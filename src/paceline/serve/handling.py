"""A request from its orders to its answer, with detection of clients that hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from paceline.serve.answering import Answer
from paceline.serve.bodies import unless_left
from paceline.serve.compiler import Compiler
from paceline.serve.engine import Engine
from paceline.serve.errors import ApiError
from paceline.serve.logs import log
from paceline.serve.response_answers import ResponseAnswer
from paceline.serve.responses import ResponsesRequest
from paceline.serve.schemas import TextRequest
from paceline.serve.settings import ServeSettings
from paceline.serve.ticket import News, Order, Ticket
from paceline.text import Tokenizer

_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_SILENCE = 15.0
"""Seconds without an event after which a stream sends a comment, as HTML's standard advises: a long
prompt or a call that is held back may take minutes, and proxies and clients close silent
connections."""
_COMMENT = ": keep-alive\n\n"


@dataclass(frozen=True)
class Handler:
    """Serves orders through the engine. fingerprint: of model and server."""

    engine: Engine
    compiler: Compiler
    settings: ServeSettings
    tokenizer: Tokenizer
    fingerprint: str

    async def serve(
        self,
        request: Request,
        wanted: TextRequest,
        orders: Sequence[Order],
        asked: Any,
        arrived: float,
    ) -> Response:
        """Answer whole or as a stream. A stream begins with the first news, so that errors before
        that have a status, or after `_SILENCE` without any. asked: for the log, if prompts are
        logged. arrived: by the monotonic clock. Raises ApiError, and ClientDisconnect."""
        name = request.state.request_id
        logged = asked if self.settings.log_prompts else None
        ticket = Ticket(name, orders, arrived + self.settings.time_limit, logged, arrived)
        answer: Answer | ResponseAnswer
        if isinstance(wanted, ResponsesRequest):
            answer = ResponseAnswer(wanted, ticket, self.tokenizer, self.fingerprint)
        else:
            answer = Answer(wanted, ticket, self.tokenizer, self.fingerprint)
        # Here, not in the engine's thread, which writes other texts meanwhile. Their constraints
        # are equal.
        compiling = self.compiler.compiled(orders[0], ticket.deadline)
        try:
            ticket.held = await unless_left(request.receive, compiling)
        except ClientDisconnect:
            self._finish(ticket)
            raise
        self.engine.submit(ticket)
        with ExitStack() as ending:
            ending.callback(self._finish, ticket)
            if wanted.stream:
                first = await unless_left(request.receive, ticket.heard(_SILENCE))
                return _Events(self._pieces(ticket, answer, first), ending.pop_all().close)
            completions = await unless_left(request.receive, ticket.completed())
        # An answer with log-probabilities may be long: other requests do not wait for it.
        return await asyncio.to_thread(lambda: JSONResponse(answer.whole(completions)))

    async def _pieces(
        self, ticket: Ticket, answer: Answer | ResponseAnswer, heard: Sequence[News]
    ) -> AsyncIterator[str]:
        """The server-sent events of a stream, with a comment wherever there are none for long.
        heard: the first news, if there are any yet."""
        try:
            for piece in answer.begin():
                yield _event(piece)
            said = monotonic()
            while True:
                # News may have no pieces: text that may become a call is held back.
                lines = [_event(piece) for news in heard for piece in answer.pieces(news)]
                if not lines and monotonic() - said >= _SILENCE:
                    lines = [_COMMENT]
                for line in lines:
                    yield line
                    said = monotonic()
                if not ticket.unheard:
                    break
                heard = await ticket.heard(said + _SILENCE - monotonic())
            for piece in answer.end(await ticket.completed()):
                yield _event(piece)
            if answer.end_mark:
                yield answer.end_mark
        except ApiError as error:
            yield _event(answer.failed(error))

    def _finish(self, ticket: Ticket) -> None:
        """Release the request in the engine, whatever its outcome, and log it."""
        ticket.cancelled = True
        line: dict[str, Any] = {
            "request": ticket.name,
            "outcome": ticket.outcome or "left",
            "texts": len(ticket.orders),
            "prompt_tokens": len(ticket.orders[0].prompt),
            "tokens": ticket.tokens,
            "seed": ticket.orders[0].options.seed,
            "queue_seconds": round(max(0.0, ticket.begun - ticket.arrived), 4),
            "first_token_seconds": round(max(0.0, ticket.first_token - ticket.arrived), 4),
            "seconds": round(monotonic() - ticket.arrived, 4),
        }
        if ticket.asked is not None:
            answers = {place: each.text for place, each in ticket.completions.items()}
            line |= {"asked": ticket.asked, "answers": answers}
        log("request", **line)


class _Events(StreamingResponse):
    """Server-sent events. ended: called once all are sent, or the client has left."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_STREAM_HEADERS)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def _event(piece: dict[str, Any]) -> str:
    # In ASCII: to many readers of lines, a line also ends at U+0085, U+2028 and U+2029.
    name = f"event: {piece['type']}\n" if "type" in piece else ""
    return f"{name}data: {json.dumps(piece)}\n\n"
