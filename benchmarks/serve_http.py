"""An HTTP/1.1 client for load on bare sockets, so that it can hang up and misbehave at will."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 300.0
"""Seconds that any step may take; after that the answer counts as lost."""


class BrokenError(Exception):
    """The connection ended before the response, or the response is not HTTP."""


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    @staticmethod
    def of(url: str) -> Address:
        parts = urlsplit(url)
        return Address(parts.hostname or "127.0.0.1", parts.port or 80)


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """One request and its response, on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.status = 0
        self.headers: dict[str, str] = {}

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def hang_up(self) -> None:
        """Abort the connection, whatever is in progress."""
        self._writer.transport.abort()

    async def begin(self) -> None:
        """Wait for the response's status and headers."""
        words = (await self._line()).split(b" ", 2)
        if len(words) < 2 or not words[1].isdigit():
            raise BrokenError("there is no status line")
        self.status = int(words[1])
        while line := await self._line():
            name, _, value = line.partition(b":")
            self.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the body as they arrive."""
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self._exactly(int(self.headers.get("content-length", "0")))
            return
        while size := int(await self._line() or b"0", 16):
            yield await self._exactly(size)
            await self._line()
        await self._line()

    async def body(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def events(self) -> AsyncIterator[str]:
        """The data of server-sent events."""
        rest = b""
        async for part in self.parts():
            rest += part
            *whole, rest = rest.split(b"\n\n")
            for event in whole:
                if event.startswith(b"data: "):
                    yield event[6:].decode()

    async def _line(self) -> bytes:
        try:
            line = await asyncio.wait_for(self._reader.readline(), TIMEOUT)
        except (ConnectionError, ValueError, TimeoutError) as error:
            raise BrokenError(f"no line: {type(error).__name__}") from error
        if not line.endswith(b"\n"):
            raise BrokenError("the response breaks off")
        return line.rstrip(b"\r\n")

    async def _exactly(self, size: int) -> bytes:
        try:
            return await asyncio.wait_for(self._reader.readexactly(size), TIMEOUT)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise BrokenError(f"the body breaks off: {type(error).__name__}") from error


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[Exchange]:
    """A connection for one exchange. Raises BrokenError if it cannot be made."""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(address.host, address.port), TIMEOUT
        )
    except (OSError, TimeoutError) as error:
        raise BrokenError(f"no connection: {type(error).__name__}") from error
    try:
        yield Exchange(reader, writer)
    finally:
        writer.transport.abort()


def message(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def post(path: str, body: Mapping[str, Any]) -> bytes:
    """A request that posts JSON."""
    return message("POST", path, json.dumps(body).encode())


async def call(address: Address, data: bytes) -> Response:
    """Send the bytes of a request; return the whole response. Raises BrokenError."""
    async with connected(address) as exchange:
        try:
            await exchange.send(data)
        except ConnectionError as error:
            raise BrokenError("the server hung up") from error
        await exchange.begin()
        return Response(exchange.status, exchange.headers, await exchange.body())
