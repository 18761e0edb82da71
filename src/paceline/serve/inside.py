"""Requests to the server's application from the same process, without HTTP and without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

__all__ = ["Reply", "post"]


@dataclass(frozen=True)
class Reply:
    """What came back.

    body: read from JSON. request_id: as the server's log has it.
    """

    status: int
    request_id: str
    body: Any


async def post(app: ASGIApp, path: str, body: dict[str, Any]) -> Reply:
    """Post JSON and wait for the whole response, which is JSON as well.

    Where this is cancelled the application learns that nobody waits any more.
    """
    call = _Call(json.dumps(body).encode())
    try:
        await app(_scope(path, len(call.content)), call.receive, call.send)
    except Exception:
        # Starlette raises errors once more after it has answered with 500.
        if not call.complete:
            raise
    name = call.headers.get(b"x-request-id", b"").decode("latin-1")
    return Reply(call.status, name, json.loads(bytes(call.data)))


class _Call:
    """Both ends of one request, by the protocol of ASGI."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.data = bytearray()
        self.complete = False
        self._sent = False

    async def receive(self) -> dict[str, Any]:
        """The body, and after that nothing: nobody hangs up."""
        if self._sent:
            await asyncio.Event().wait()
        self._sent = True
        return {"type": "http.request", "body": self.content, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """A part of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.lower(): value for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            self.data += message.get("body", b"")
            self.complete = not message.get("more_body", False)


def _scope(path: str, length: int) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(length).encode()),
        ],
        "client": None,
        "server": None,
    }
