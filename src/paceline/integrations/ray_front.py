"""Front end of a server's replicas: forwards requests, and handles replicas that die.

If a replica dies, its requests go to another one, unless the client has already received part of
the answer: a stream that has begun ends with an error in OpenAI's format. (Ray itself answers in
plain text, and cuts streams off.)
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from paceline.serve.bodies import read_body, unless_left
from paceline.serve.errors import ApiError, for_now, too_many
from paceline.serve.inside import Query

Replicas = Callable[[Query], AsyncGenerator[Message, None]]
"""Asks one of the replicas: yields the messages of its response, see `ask`."""

_STREAMED = b"text/event-stream"
_TRIES = 3  # how often a request is sent at most


@dataclass(frozen=True)
class Front:
    """An ASGI application that forwards requests to replicas.

    lost: exceptions that mean a replica has died. busy: exceptions that mean all replicas are full.
    max_body: bytes of the largest request. body_limit: seconds in which it must arrive.
    """

    replicas: Replicas
    lost: tuple[type[Exception], ...]
    busy: tuple[type[Exception], ...]
    max_body: int
    body_limit: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request."""
        request = Request(scope, receive)
        try:
            body = await read_body(request, self.max_body, self.body_limit)
            query = Query(
                request.method, scope["path"], body, request.headers.raw, scope["query_string"]
            )
            await unless_left(receive, self._answer(query, send))
        except ClientDisconnect:
            return
        except ApiError as error:
            await error.response(scope, receive, send)

    async def _answer(self, query: Query, send: Send) -> None:
        """Raises ApiError if there is no answer, unless one has begun: that ends with the error."""
        begun = False

        async def begin(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        for _ in range(_TRIES):
            try:
                await self._once(query, begin)
                return
            except self.busy:
                error = too_many()
                break
            except self.lost:
                what = "the replica that worked on this request has stopped: try again"
                error = for_now(503, what, "replica_lost")
                if begun:
                    break
        if not begun:
            raise error
        event = f"data: {json.dumps(error.body)}\n\n".encode()
        await send({"type": "http.response.body", "body": event, "more_body": False})

    async def _once(self, query: Query, send: Send) -> None:
        """Forward a replica's answer: a stream as it arrives, anything else once complete."""
        waiting: list[Message] = []
        streamed = False

        async def forward() -> None:
            while waiting:
                await send(waiting.pop(0))

        async with aclosing(self.replicas(query)) as messages:
            async for message in messages:
                if message["type"] == "http.response.start":
                    # Ray's proxy sets this header too.
                    headers = [each for each in message["headers"] if each[0] != b"x-request-id"]
                    streamed = dict(headers).get(b"content-type", b"").startswith(_STREAMED)
                    message = {**message, "headers": headers}
                waiting.append(message)
                if streamed and "body" in message:
                    await forward()
        await forward()
