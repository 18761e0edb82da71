"""A server of a toy session on a free port, for tests that speak HTTP to it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import httpx
from tests.forked import Forked
from tests.tiny import TEMPLATE, byte_tokenizer

from paceline.serve.app import Server
from paceline.serve.running_server import StoppableServer, bound_socket
from paceline.serve.settings import ServeSettings
from paceline.session import Session
from paceline.targets.toy import ToyTarget

MODEL = "toy"

TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients: to read the certificates of all authorities takes longer than most requests."""

TOOL_TEMPLATE = "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}" + TEMPLATE


class SlowToy(ToyTarget):
    """A toy whose passes take a moment, so that there is time to leave."""

    def score(self, *work: Any) -> Any:
        time.sleep(0.01)
        return super().score(*work)


def tool_session(target: type[ToyTarget] = ToyTarget, method: Any = "anpd") -> Session:
    """A session on a toy, with a template that takes tools."""
    tokenizer = byte_tokenizer(TOOL_TEMPLATE)
    toy = target(vocab_size=len(tokenizer), order=2, sharpness=3.0, max_context=4096)
    return Session(toy, tokenizer, method, eos_ids=[tokenizer.eos_token_id])


@dataclass
class Live:
    """A running server. url: its address. http: a client of it."""

    server: Server
    url: str
    http: httpx.Client
    thread: Thread
    stop: Any

    def chat(self, text: str = "once upon", **fields: Any) -> httpx.Response:
        """Ask for a short answer."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 20}
        return self.http.post("/v1/chat/completions", json={**body, **fields})

    def complete(self, prompt: Any = "once upon", **fields: Any) -> httpx.Response:
        """Ask for a short continuation."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 20}
        return self.http.post("/v1/completions", json={**body, **fields})


@contextmanager
def live(
    session: Session,
    keys: Sequence[str] = (),
    names: Sequence[str] = (MODEL,),
    hosts: frozenset[str] | None = None,
    **settings: Any,
) -> Iterator[Live]:
    """Serve a session until the block ends."""
    server = Server(session, names, ServeSettings(**{"grace": 2.0, **settings}), keys, hosts)
    bound = bound_socket("127.0.0.1", 0)
    uvicorn_server = StoppableServer(server)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    loop = asyncio.new_event_loop()

    def run() -> None:
        loop.run_until_complete(uvicorn_server.serve([bound]))

    thread = Thread(target=run, name="test-server")
    thread.start()
    try:
        headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
        with httpx.Client(base_url=url, headers=headers, timeout=60, verify=TRUSTS_NOBODY) as http:
            wait_for(lambda: http.get("/health").status_code == 200)
            yield Live(
                server, url, http, thread, lambda: loop.call_soon_threadsafe(uvicorn_server.stop)
            )
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(uvicorn_server.stop)
        thread.join(60)
        assert not thread.is_alive()
        loop.close()


@contextmanager
def serving(model: object, *words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own; its process and address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = Forked(
        ["paceline", "serve", "--model", model, "--port", port, "--method", "anpd", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PACELINE_API_KEY": ""},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(verify=TRUSTS_NOBODY) as http:
            wait_for(lambda: http.get(f"{url}/ready").status_code == 200, 300, between=0.1)
        yield process, url
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Any, seconds: float = 20.0, between: float = 0.005) -> None:
    """Until something is true, looked at every `between` seconds; connections may be refused
    meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        time.sleep(between)
    raise AssertionError("it did not happen in time")
