"""uvicorn that stops in steps: not ready, requests finish or are cut off, sockets close."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

import uvicorn

from paceline.errors import UsageError
from paceline.serve.app import Server, create_app
from paceline.serve.logs import log

_BACKLOG = 16
"""Connections to accept at once. Where files run out, asyncio tries as many again and again, and logs
each failure."""
_WAITING = 2048
"""Connections that the system keeps until they are accepted."""

_MACOS_FILES = 10_240
"""Open files that macOS allows, whatever its limit says."""

_PROBED_AFTER = 60
"""Seconds of silence, in both directions, after which a connection's peer is probed."""


class StoppableServer(uvicorn.Server):
    """Stops accepting requests at the first signal, but still answers readiness checks until the
    engine has ended; at the second signal it cuts off requests, and at a third Ctrl-C it drops
    connections."""

    def __init__(self, server: Server) -> None:
        config = uvicorn.Config(
            create_app(server),
            # uvicorn prefers httptools where that is installed, which drops the body of a request
            # that offers HTTP/2, as every request of Java's own client does.
            http="h11",
            lifespan="on",  # otherwise an application that fails to start serves errors
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=75,
            backlog=_BACKLOG,
        )
        super().__init__(config)
        self._server = server
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server.serve`."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server.startup`."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_WAITING)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `uvicorn.Server.handle_exit`."""
        if self._loop is None or self._stopping is not None:
            third = self._stopping is not None and self.should_exit
            self.force_exit = third and sig == signal.SIGINT
            self._server.engine.cut()
            self.should_exit = True
            return
        self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Start stopping; called in the event loop."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())

    async def _stop(self) -> None:
        log("stopping", running=self._server.engine.load[0])
        await self._server.stop()
        self.should_exit = True


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address, but not listening yet. port: 0 for any.

    Raises UsageError if the address is not available, or empty: that would be all interfaces.
    """
    if not host.strip():
        raise UsageError("the host is empty: name one, such as 127.0.0.1, or 0.0.0.0 for any")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with _listening_on(f"{host}:{port}"), ExitStack() as unless_bound:
        # asyncio sets TCP_NODELAY only where the protocol is named.
        bound = unless_bound.enter_context(socket.socket(family, proto=socket.IPPROTO_TCP))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _probe_silent_peers(bound)
        bound.bind((host, port))
        unless_bound.pop_all()
    return bound


def _probe_silent_peers(listening: socket.socket) -> None:
    """Connections inherit this: those of peers that have vanished close, and networks that forget
    silent ones after minutes keep those on which a long answer is awaited."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # elsewhere the system's own time, often two hours
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBED_AFTER)


@contextmanager
def _listening_on(place: str) -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on {place}: {reason}") from error


def _allow_connections() -> None:
    """Open as many files as the system lets this process: by default often 1,024."""
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        for count in (most, _MACOS_FILES):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
                break


def run(server: Server, bound: socket.socket) -> None:
    """Serve on a bound socket until a signal says to stop. Raises UsageError if another process has
    begun to listen there."""
    address, port = bound.getsockname()[:2]
    place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    with _listening_on(place):
        bound.listen(_WAITING)
    _allow_connections()
    log("listening", url=f"http://{place}", model=server.names[0])
    StoppableServer(server).run(sockets=[bound])
