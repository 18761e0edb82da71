"""Requests to the server's application from the same process, without HTTP or sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message


@dataclass(frozen=True)
class Query:
    """A request. headers: names in lower case."""

    method: str
    path: str
    body: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),)
    query: bytes = b""


class Reply(NamedTuple):
    """A complete response. body: parsed JSON. request_id: as in the server's log."""

    status: int
    request_id: str
    body: Any


async def ask(app: ASGIApp, query: Query) -> AsyncGenerator[Message, None]:
    """Yield the response as ASGI messages: the first has status and headers, each other a part of
    the body. Closing the iterator early hangs up."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    unread, complete = [query.body], False

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never  # hanging up cancels the application

    async def send(message: Message) -> None:
        nonlocal complete
        messages.put_nowait(message)
        if message["type"] == "http.response.body":
            complete = not message.get("more_body", False)

    working = asyncio.ensure_future(app(_scope(query), receive, send))
    working.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        while (message := await messages.get()) is not None:
            yield message
        # Starlette raises an error again after it has answered with 500.
        if not complete:
            await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def post(app: ASGIApp, path: str, body: dict[str, Any]) -> Reply:
    """Post JSON and wait for the whole response, which is JSON too."""
    query = Query("POST", path, json.dumps(body, ensure_ascii=False).encode())
    head, *parts = [message async for message in ask(app, query)]
    name = dict(head["headers"]).get(b"x-request-id", b"").decode("latin-1")
    data = b"".join(part.get("body", b"") for part in parts)
    return Reply(head["status"], name, json.loads(data))


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
