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
from starlette.types import Receive, Scope, Send

from paceline.serve.bodies import read_body, unless_left
from paceline.serve.errors import ApiError, too_many
from paceline.serve.inside import Head, Query

__all__ = ["Front"]

Replicas = Callable[[Query], AsyncGenerator[Head | bytes, None]]
"""Asks one of the replicas: yields the head of the response, then the parts of its body."""

_STREAMED = b"text/event-stream"


@dataclass(frozen=True)
class Front:
    """An ASGI application that forwards requests to replicas.

    lost: exceptions that mean a replica has died. busy: exceptions that mean all replicas are full.
    max_body: bytes of the largest request. tries: how often a request is sent at most.
    """

    replicas: Replicas
    lost: tuple[type[Exception], ...]
    busy: tuple[type[Exception], ...]
    max_body: int
    tries: int = 3

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request."""
        request = Request(scope, receive)
        try:
            query = await self._query(request)
        except ClientDisconnect:
            return
        except ApiError as error:
            await error.response(scope, receive, send)
            return
        await unless_left(receive, self._answer(query, _Out(scope, receive, send)))

    async def _query(self, request: Request) -> Query:
        return Query(
            request.method,
            request.scope["path"],
            await read_body(request, self.max_body),
            request.headers.raw,
            request.scope["query_string"],
        )

    async def _answer(self, query: Query, out: _Out) -> None:
        for tried in range(1, self.tries + 1):
            try:
                await self._once(query, out)
                return
            except self.busy:
                await out.fail(too_many())
                return
            except self.lost:
                if out.begun or tried == self.tries:
                    message = "the replica that worked on this request has stopped: try again"
                    soon = {"Retry-After": "1"}  # may well succeed
                    lost = ApiError(503, message, code="replica_lost", headers=soon)
                    await out.fail(lost)
                    return

    async def _once(self, query: Query, out: _Out) -> None:
        """Forward a replica's answer: a stream as it arrives, anything else once complete."""
        head, whole = Head(500, ()), bytearray()
        async with aclosing(self.replicas(query)) as parts:
            async for part in parts:
                if isinstance(part, Head):
                    head = part
                elif dict(head.headers).get(b"content-type", b"").startswith(_STREAMED):
                    await out.begin(head)
                    await out.send(part, more=True)
                else:
                    whole += part
        await out.begin(head)
        await out.send(bytes(whole))


class _Out:
    """The response to the client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.begun = False

    async def begin(self, head: Head) -> None:
        """Send the head, once."""
        if not self.begun:
            self.begun = True
            start = {"type": "http.response.start", "status": head.status}
            # Ray's proxy sets this header too.
            headers = [each for each in head.headers if each[0] != b"x-request-id"]
            await self._send({**start, "headers": headers})

    async def send(self, data: bytes, more: bool = False) -> None:
        """Send more of the body, or the rest of it."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def fail(self, error: ApiError) -> None:
        """Report an error; in a stream that has begun, as its last event."""
        if not self.begun:
            await error.response(self._scope, self._receive, self._send)
            return
        await self.send(f"data: {json.dumps(error.body)}\n\n".encode())
