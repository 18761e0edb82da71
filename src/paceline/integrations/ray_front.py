"""What stands before the replicas of a server: it hands requests on, and deals with their deaths.

A request whose replica dies is sent to another one, as long as its client has heard nothing of the
answer; a stream that has begun ends with an error in OpenAI's shape. (Ray by itself answers with
plain text, and cuts streams off.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from paceline.serve.errors import ApiError, too_many
from paceline.serve.inside import Head, Query

__all__ = ["Front"]

Replicas = Callable[[Query], AsyncIterator[Head | bytes]]
"""Has one of the replicas answer: the head of the response, then the parts of its body."""

_STREAMED = b"text/event-stream"


@dataclass(frozen=True)
class Front:
    """An ASGI application that has replicas answer.

    lost: errors by which a replica's death is known. busy: by which it is known that all have
    enough to do. max_body: bytes of the largest request. tries: how often a request is sent.
    """

    replicas: Replicas
    lost: tuple[type[Exception], ...]
    busy: tuple[type[Exception], ...]
    max_body: int
    tries: int = 3

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, by the protocol of ASGI."""
        request = Request(scope, receive)
        try:
            query = await self._query(request)
        except ClientDisconnect:
            return
        except ApiError as error:
            await _refusal(error)(scope, receive, send)
            return
        working = asyncio.ensure_future(self._answer(query, _Out(scope, receive, send)))
        watching = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)
        if not working.cancelled():
            working.result()

    async def _query(self, request: Request) -> Query:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.max_body:
                message = f"the request is larger than {self.max_body} bytes"
                raise ApiError(413, message, code="request_too_large")
        return Query(
            request.method,
            request.scope["path"],
            bytes(body),
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
                    await out.fail(_lost())
                    return

    async def _once(self, query: Query, out: _Out) -> None:
        """Hand on what a replica answers: a stream as it comes, all else once it is whole."""
        head, whole = Head(500, ()), bytearray()
        async with aclosing(self.replicas(query)) as parts:  # type: ignore[type-var]
            async for part in parts:
                if isinstance(part, Head):
                    head = part
                elif _is_stream(head):
                    await out.begin(head)
                    await out.part(part)
                else:
                    whole += part
        await out.begin(head)
        await out.end(bytes(whole))


class _Out:
    """The way back to the client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.begun = False

    async def begin(self, head: Head) -> None:
        """Send the head, unless that was done."""
        if not self.begun:
            self.begun = True
            start = {"type": "http.response.start", "status": head.status}
            # Ray's proxy names requests and says so in its responses, so this would be said twice.
            headers = [each for each in head.headers if each[0] != b"x-request-id"]
            await self._send({**start, "headers": headers})

    async def part(self, data: bytes) -> None:
        """More of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The rest of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Say what went wrong; in a stream that has begun as its last event."""
        if not self.begun:
            await _refusal(error)(self._scope, self._receive, self._send)
            return
        await self.end(f"data: {json.dumps(error.body)}\n\n".encode())


def _is_stream(head: Head) -> bool:
    return dict(head.headers).get(b"content-type", b"").startswith(_STREAMED)


def _refusal(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, error.headers)


def _lost() -> ApiError:
    """Sent again the request may well be answered."""
    message = "the replica that worked on this request has stopped: try again"
    return ApiError(503, message, code="replica_lost", headers={"Retry-After": "1"})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
