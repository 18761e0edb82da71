"""Clients that ask, hang up and misbehave for a while, and a tally of what they saw."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_http import Address, BrokenError, call, connected, message, post
from serve_malformed import CHAT, Malformed, malformed
from serve_pool import Ask, Expected

MOST_EXAMPLES = 20
BUSY = (429, 503)
PAUSE = 0.2
"""Seconds until a client that was turned away or misbehaved comes again."""


@dataclass
class Tally:
    """What happened. wrong: unexpected answers; lost: answers that broke off; refused: errors for
    good requests; accepted: malformed requests without an error, or with one of another shape."""

    counts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    malformed_kinds: set[str] = field(default_factory=set)

    def add(self, what: str) -> None:
        self.counts[what] += 1

    def complain(self, what: str, details: str) -> None:
        """Count something that must not happen."""
        self.add(what)
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{what}: {details[:400]}")

    @property
    def faults(self) -> int:
        """How often something happened that must not happen."""
        server_errors = sum(
            number for status, number in self.statuses.items() if status >= 500 and status != 503
        )
        return server_errors + sum(
            self.counts[what] for what in ("wrong", "lost", "refused", "accepted")
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "counts": dict(sorted(self.counts.items())),
            "statuses": {str(status): self.statuses[status] for status in sorted(self.statuses)},
            "malformed_kinds": len(self.malformed_kinds),
            "faults": self.faults,
            "examples": self.examples,
        }


@dataclass(frozen=True)
class Scene:
    """What clients share: the server, the model's name on it, requests and their answers."""

    address: Address
    model: str
    asks: Sequence[Ask]
    expected: Sequence[Expected]
    tally: Tally
    deadline: float

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline

    def pick(self, rng: random.Random) -> tuple[Expected, dict[str, Any]]:
        """A random request in one of its forms; the answer is the same in all of them."""
        place = rng.randrange(len(self.asks))
        ask, fields = self.asks[place], {}
        if ask.prediction and rng.random() < 0.5:
            fields["prediction"] = {"type": "content", "content": ask.prediction}
        if rng.random() < 0.2:
            fields["paceline"] = {"method": "off"}
        return self.expected[place], ask.body(self.model, **fields)


async def well_behaved(scene: Scene, rng: random.Random) -> None:
    """Send requests, streamed or not, and compare the answers."""
    while not scene.over:
        expected, body = scene.pick(rng)
        try:
            if rng.random() < 0.5:
                await _streamed(scene, body, expected)
            else:
                await _whole(scene, body, expected)
        except (BrokenError, ValueError, KeyError, IndexError, ConnectionError) as error:
            scene.tally.complain("lost", f"{type(error).__name__}: {error}")


async def leaver(scene: Scene, rng: random.Random) -> None:
    """Hang up at some point of every request; what arrived before must be right."""
    while not scene.over:
        expected, body = scene.pick(rng)
        data = post(CHAT, {**body, "stream": rng.random() < 0.8})
        try:
            async with connected(scene.address) as exchange:
                way = rng.random()
                if way < 0.1:
                    await exchange.send(data[: rng.randrange(1, len(data))])
                else:
                    await exchange.send(data)
                    await asyncio.wait_for(
                        _some(scene, exchange, expected, rng), rng.uniform(0.02, 3)
                    )
                exchange.hang_up()
        except TimeoutError:
            pass
        except (BrokenError, ConnectionError) as error:
            scene.tally.complain("lost", f"before it hung up: {error}")
        scene.tally.add("hung_up")
        await asyncio.sleep(PAUSE * rng.random())


async def misbehaving(scene: Scene, rng: random.Random, variants: Sequence[Malformed]) -> None:
    """Send what must be refused, one after the other, from a random place on."""
    start = rng.randrange(len(variants))
    order = [*variants[start:], *variants[:start]]
    while not scene.over:
        for variant in order:
            if scene.over:
                return
            await _refused(scene, variant)
            await asyncio.sleep(PAUSE * rng.random())


async def soak(scene: Scene, clients: int, shares: tuple[float, float], seed: int = 0) -> None:
    """Run all clients until the time is up. shares: of clients that hang up, and that misbehave; at
    least one of each."""
    variants = malformed(scene.model)
    leavers, wrong = (max(1, round(share * clients)) for share in shares)
    kinds: list[Callable[[random.Random], Any]] = [
        *[lambda rng: leaver(scene, rng)] * leavers,
        *[lambda rng: misbehaving(scene, rng, variants)] * wrong,
    ]
    kinds += [lambda rng: well_behaved(scene, rng)] * max(1, clients - len(kinds))
    async with asyncio.TaskGroup() as group:
        for place, kind in enumerate(kinds):
            group.create_task(kind(random.Random(seed * 1000 + place)))


async def at_rest(scene: Scene, seconds: float = 10.0) -> bool:
    """Whether the server holds no request within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        state = (await call(scene.address, message("GET", "/state"))).json()
        if not (state["running"] or state["waiting"]):
            return True
        await asyncio.sleep(0.1)
    return False


async def _whole(scene: Scene, body: dict[str, Any], expected: Expected) -> None:
    response = await call(scene.address, post(CHAT, body))
    scene.tally.statuses[response.status] += 1
    if response.status != 200:
        await _not_served(scene, response.status, response.body)
        return
    answer = response.json()
    choice = answer["choices"][0]
    compare(
        scene.tally,
        expected,
        choice["message"]["content"],
        choice["finish_reason"],
        answer["usage"]["completion_tokens"],
    )


async def _streamed(scene: Scene, body: dict[str, Any], expected: Expected) -> None:
    data = post(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
    async with connected(scene.address) as exchange:
        await exchange.send(data)
        await exchange.begin()
        scene.tally.statuses[exchange.status] += 1
        if exchange.status != 200:
            await _not_served(scene, exchange.status, await exchange.body())
            return
        text, reason, usage, done = "", None, None, False
        ids = set()
        async for event in exchange.events():
            if event == "[DONE]":
                done = True
                continue
            piece = json.loads(event)
            if "error" in piece:
                raise BrokenError(f"an error in a stream: {event[:200]}")
            ids.add(piece["id"])
            usage = piece["usage"] or usage
            for choice in piece["choices"]:
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
    if not done or usage is None or len(ids) != 1:
        raise BrokenError(f"a stream without its end: done {done}, usage {usage}, ids {len(ids)}")
    compare(scene.tally, expected, text, reason, usage["completion_tokens"])


def compare(tally: Tally, expected: Expected, text: str, reason: str | None, tokens: int) -> None:
    """Count an answer as right or wrong."""
    tally.add("answers")
    tally.counts["tokens"] += tokens
    if Expected(text, str(reason), tokens) != expected:
        tally.complain("wrong", f"{text!r}, {reason}, {tokens} tokens instead of {expected}")


async def _some(scene: Scene, exchange: Any, expected: Expected, rng: random.Random) -> None:
    await exchange.begin()
    scene.tally.statuses[exchange.status] += 1
    if exchange.status != 200:
        await _not_served(scene, exchange.status, await exchange.body())
        return
    if not exchange.headers.get("content-type", "").startswith("text/event-stream"):
        await exchange.body()
        return
    text, left = "", rng.randrange(1, 20)
    async for event in exchange.events():
        if event == "[DONE]":
            return
        choices = json.loads(event).get("choices") or [{"delta": {}}]
        text += choices[0]["delta"].get("content") or ""
        if not expected.text.startswith(text):
            scene.tally.complain("wrong", f"{text!r} is no beginning of {expected.text!r}")
        left -= 1
        if not left:
            return


async def _not_served(scene: Scene, status: int, body: bytes) -> None:
    if status in BUSY:
        scene.tally.add("turned_away")
        await asyncio.sleep(PAUSE)
    else:
        scene.tally.complain("refused", f"{status}: {body[:300]!r}")


async def _refused(scene: Scene, variant: Malformed) -> None:
    tally = scene.tally
    tally.malformed_kinds.add(variant.name)
    tally.add("malformed")
    try:
        response = await call(scene.address, variant.data)
    except BrokenError as error:
        if variant.protocol:
            tally.complain("accepted", f"{variant.name}: {error}")
        return
    tally.statuses[response.status] += 1
    if response.status in BUSY:
        tally.add("turned_away")
    elif not 400 <= response.status < 500 or (variant.protocol and not _is_error(response.body)):
        tally.complain("accepted", f"{variant.name}: {response.status} {response.body[:200]!r}")


def _is_error(body: bytes) -> bool:
    """Whether a body is an error of OpenAI's shape."""
    try:
        error = json.loads(body)["error"]
        return set(error) == {"message", "type", "param", "code"} and bool(error["message"])
    except (ValueError, KeyError, TypeError):
        return False
