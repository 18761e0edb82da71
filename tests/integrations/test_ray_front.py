"""What stands before Ray's replicas, with replicas that are none: it needs no Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

from tests.serve.live import MODEL, SlowToy, tool_session, wait_for

from paceline.integrations.ray_front import Front
from paceline.serve.app import Server, create_app
from paceline.serve.inside import Query, Reply, ask, post
from paceline.serve.settings import ServeSettings

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "once upon"}]
BODY = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "seed": 3}
STREAMED = {**BODY, "stream": True}


class LostError(Exception):
    """A replica has died."""


class BusyError(Exception):
    """All replicas have enough to do."""


class Replicas:
    """An engine behind a front. plan: for each request in turn, after how many parts of its
    answer the replica dies; None: it does not."""

    def __init__(self, *plan: int | None) -> None:
        self.server = Server(tool_session(SlowToy), [MODEL], ServeSettings(grace=0.0))
        self.app = create_app(self.server)
        self.plan = [*plan]
        self.asked = 0
        self.error: type[Exception] = LostError

    async def __call__(self, query: Query) -> AsyncIterator[Any]:
        dies = self.plan[self.asked] if self.asked < len(self.plan) else None
        self.asked += 1
        parts = 0
        async for part in ask(self.app, query):
            if parts == dies:
                raise self.error
            parts += 1
            yield part

    def run(self, use: Callable[[Front], Any], body_limit: float = 60.0) -> Any:
        """What `use` makes of a front, in an event loop, while the engine works."""
        front = Front(self, (LostError,), (BusyError,), 10_000, body_limit)
        self.server.engine.start()
        try:
            return asyncio.run(use(front))
        finally:
            self.server.engine.stop()

    def post(self, body: dict[str, Any]) -> Reply:
        reply: Reply = self.run(lambda front: post(front, CHAT, body))
        return reply

    def stream(self, body: dict[str, Any]) -> tuple[int, str]:
        async def use(front: Front) -> tuple[int, str]:
            head, *parts = [
                part async for part in ask(front, Query("POST", CHAT, json.dumps(body).encode()))
            ]
            assert not parts[-1]["more_body"]
            return head["status"], b"".join(part["body"] for part in parts).decode()

        found: tuple[int, str] = self.run(use)
        return found


def content(stream: str) -> str:
    """The text of a stream; it must be whole."""
    events = stream.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    pieces = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    return "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces)


@pytest.fixture(scope="module")
def alone() -> str:
    answer = tool_session(method="plain").chat(
        "once upon", seed=3, temperature=1.0, max_new_tokens=12
    )
    return answer.text


def test_answers_come_through(alone: str) -> None:
    replicas = Replicas()
    reply = replicas.post(BODY)
    assert reply.status == 200
    assert reply.body["choices"][0]["message"]["content"] == alone
    assert reply.request_id == ""  # Ray's proxy adds one
    status, stream = Replicas().stream(STREAMED)
    assert status == 200
    assert content(stream) == alone


def test_a_body_that_never_arrives_ends() -> None:
    async def use(front: Front) -> int:
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
        await front(scope, receive, send)
        status: int = sent[0]["status"]
        return status

    replicas = Replicas()
    assert replicas.run(use, body_limit=0.05) == 408
    assert replicas.asked == 0


def test_errors_of_replicas_come_through() -> None:
    reply = Replicas().post({**BODY, "temperature": 7})
    assert reply.status == 400
    assert reply.body["error"]["param"] == "temperature"


@pytest.mark.parametrize("plan", [(0,), (1,), (0, 1)])
def test_an_answer_whose_replica_dies_comes_from_another(plan: tuple[int, ...], alone: str) -> None:
    replicas = Replicas(*plan)
    reply = replicas.post(BODY)
    assert reply.status == 200
    assert reply.body["choices"][0]["message"]["content"] == alone
    assert replicas.asked == len(plan) + 1


def test_a_stream_that_has_not_begun_comes_from_another(alone: str) -> None:
    replicas = Replicas(1)
    _, stream = replicas.stream(STREAMED)
    assert content(stream) == alone
    assert replicas.asked == 2


def test_a_stream_that_has_begun_ends_with_an_error() -> None:
    replicas = Replicas(3)
    status, stream = replicas.stream(STREAMED)
    assert status == 200
    error = json.loads(stream.strip().split("\n\n")[-1].removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "replica_lost"
    assert "[DONE]" not in stream
    assert replicas.asked == 1


def test_when_all_replicas_die_there_is_an_error() -> None:
    replicas = Replicas(0, 0, 0, 0)
    reply = replicas.post(BODY)
    assert reply.status == 503
    assert reply.body["error"]["code"] == "replica_lost"
    assert replicas.asked == 3


def test_busy_replicas_are_no_reason_to_try_again() -> None:
    replicas = Replicas(0)
    replicas.error = BusyError
    reply = replicas.post(BODY)
    assert reply.status == 429
    assert reply.body["error"]["type"] == "rate_limit_error"
    assert replicas.asked == 1


def test_large_requests_never_reach_a_replica() -> None:
    replicas = Replicas()
    reply = replicas.post({**BODY, "user": "x" * 20_000})
    assert reply.status == 413
    assert reply.body["error"]["code"] == "request_too_large"
    assert replicas.asked == 0


def test_who_hangs_up_frees_the_replica() -> None:
    replicas = Replicas()
    query = Query("POST", CHAT, json.dumps({**STREAMED, "max_tokens": 3000, "ignore_eos": True}).encode())  # fmt: skip

    async def use(front: Front) -> None:
        heard = asyncio.Event()
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": query.body, "more_body": False}
            await heard.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                heard.set()

        scope = {"type": "http", "method": "POST", "path": CHAT, "query_string": b""}
        headers = [(b"content-type", b"application/json")]
        await asyncio.wait_for(front({**scope, "headers": headers}, receive, send), 20)
        await asyncio.to_thread(wait_for, lambda: replicas.server.engine.load == (0, 0), 10)

    replicas.run(use)
