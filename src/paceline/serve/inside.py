"""Requests to the server's application from the same process, without HTTP or sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, MutableMapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

__all__ = ["Head", "Query", "Reply", "ask", "post"]

Headers = Sequence[tuple[bytes, bytes]]

_JSON = ((b"content-type", b"application/json"),)


@dataclass(frozen=True)
class Query:
    """A request. headers: names in lower case."""

    method: str
    path: str
    body: bytes = b""
    headers: Headers = _JSON
    query: bytes = b""


@dataclass(frozen=True)
class Head:
    """Status and headers of a response."""

    status: int
    headers: Headers


@dataclass(frozen=True)
class Reply:
    """A complete response. body: parsed JSON. request_id: as in the server's log."""

    status: int
    request_id: str
    body: Any


async def ask(app: ASGIApp, query: Query) -> AsyncGenerator[Head | bytes, None]:
    """Yield the head of the response, then the parts of its body as they arrive. Closing the
    iterator early hangs up."""
    parts: asyncio.Queue[Head | bytes | None] = asyncio.Queue()
    bodies, complete = iter([query.body]), False

    async def receive() -> dict[str, Any]:
        for body in bodies:
            return {"type": "http.request", "body": body, "more_body": False}
        # Nothing follows: hanging up cancels the application.
        return await asyncio.get_running_loop().create_future()

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal complete
        if message["type"] == "http.response.start":
            headers = [(name.lower(), value) for name, value in message["headers"]]
            parts.put_nowait(Head(message["status"], headers))
        elif message["type"] == "http.response.body":
            if message.get("body"):
                parts.put_nowait(bytes(message["body"]))
            complete = not message.get("more_body", False)

    working = asyncio.ensure_future(app(_scope(query), receive, send))
    working.add_done_callback(lambda _: parts.put_nowait(None))
    try:
        while (part := await parts.get()) is not None:
            yield part
        # Starlette raises an error again after it has answered with 500.
        if not complete:
            await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def post(app: ASGIApp, path: str, body: dict[str, Any]) -> Reply:
    """Post JSON and wait for the whole response, which is JSON too."""
    query = Query("POST", path, json.dumps(body).encode())
    head, data = Head(500, ()), b""
    async with aclosing(ask(app, query)) as parts:
        async for part in parts:
            if isinstance(part, Head):
                head = part
            else:
                data += part
    name = dict(head.headers).get(b"x-request-id", b"").decode("latin-1")
    return Reply(head.status, name, json.loads(data))


def _scope(query: Query) -> dict[str, Any]:
    length = (b"content-length", str(len(query.body)).encode())
    others = [each for each in query.headers if each[0] not in (length[0], b"transfer-encoding")]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": query.method,
        "scheme": "http",
        "path": query.path,
        "raw_path": query.path.encode(),
        "root_path": "",
        "query_string": query.query,
        "headers": [*others, length],
        "client": None,
        "server": None,
    }
