"""Throughput and latency of a server, by number of clients and by method."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from serve_http import Address, BrokenError, connected, post
from serve_malformed import CHAT
from serve_pool import TASKS, Ask
from tables import new_table, number, show

VARIANTS = ("auto", "off", "prediction")
"""auto: the server's default, so other servers can be measured. off: paceline's plain decoding.
prediction: as auto, and edits send the text they edit."""


@dataclass
class Seen:
    """What clients saw: seconds to the first token, between pieces, and per token after the first;
    tokens; failed requests."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)

    def __iadd__(self, other: Seen) -> Seen:
        self.first += other.first
        self.between += other.between
        self.per_token += other.per_token
        self.tokens += other.tokens
        self.seconds += other.seconds
        self.failed += other.failed
        return self

    def as_json(self) -> dict[str, Any]:
        return {
            "answers": len(self.first),
            "failed": len(self.failed),
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else None,
            **_spread("first_token", self.first),
            **_spread("between_pieces", self.between),
            **_spread("per_token", self.per_token),
        }


def fields_of(ask: Ask, variant: str) -> dict[str, Any]:
    """What a variant adds to a request."""
    if variant == "off":
        return {"paceline": {"method": "off"}}
    if variant == "prediction" and ask.prediction:
        return {"prediction": {"type": "content", "content": ask.prediction}}
    return {}


async def measure(
    address: Address, model: str, asks: Sequence[Ask], variant: str, clients: int, name: str
) -> dict[str, Seen]:
    """Send all requests, `clients` at a time; return what was seen, in all and by kind.

    name: put before every prompt, so that no earlier run's prompt is in the cache.
    """
    left = deque(asks)
    seen = {kind: Seen() for kind in ("all", *TASKS)}

    async def client() -> None:
        while left:
            ask = left.popleft()
            body = ask.body(model, f"Run {name}.", **fields_of(ask, variant))
            one = await _ask(address, body)
            seen[ask.kind] += one
            seen["all"] += one

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    seen["all"].seconds = time.perf_counter() - began
    return seen


async def study(
    address: Address,
    model: str,
    asks: Sequence[Ask],
    clients: Sequence[int],
    variants: Sequence[str],
    repeats: int,
) -> list[dict[str, Any]]:
    """Measure all variants at all numbers of clients, in turns; a variant's runs are summed.

    In a turn, variants get the same requests under different names, since a server may learn from
    what it has written, and their order rotates. After as many turns as variants, each has had
    every name once.
    """
    total: dict[tuple[int, str], dict[str, Seen]] = {}
    await measure(address, model, asks[: 2 * len(TASKS)], "auto", 2, "warm")
    for repeat in range(repeats):
        again, shift = divmod(repeat, len(variants))
        for count in clients:
            for place, variant in enumerate((*variants[shift:], *variants[:shift])):
                name = f"{again}-{count}-{place}"
                seen = await measure(address, model, asks, variant, count, name)
                known = total.setdefault((count, variant), {kind: Seen() for kind in seen})
                for kind, one in seen.items():
                    known[kind] += one
    if not any(seen["all"].tokens for seen in total.values()):
        reasons = [reason for seen in total.values() for reason in seen["all"].failed]
        raise SystemExit("; ".join(["no request was answered", *reasons[:1]]))
    return [
        {
            "clients": count,
            "variant": variant,
            **seen["all"].as_json(),
            "kinds": {kind: seen[kind].as_json() for kind in TASKS},
            "complaints": seen["all"].failed[:5],
        }
        for (count, variant), seen in total.items()
    ]


def show_rates(rows: Sequence[dict[str, Any]]) -> None:
    """Print the runs as a table."""
    columns = ("first token", "95 %", "between pieces", "95 %", "per token", "95 %")
    table = new_table("what clients see", "clients, method", "tokens/s", *columns)
    for row in rows:
        times = [
            number(1000 * value if value is not None else None, " ms")
            for key in ("first_token", "between_pieces", "per_token")
            for value in (row[f"{key}_median"], row[f"{key}_p95"])
        ]
        label = f"{row['clients']}, {row['variant']}"
        table.add_row(label, number(row["tokens_per_second"]), *times)
    show(table)


async def _ask(address: Address, body: dict[str, Any]) -> Seen:
    """Send one request on its own connection. Its seconds are those of the whole answer."""
    seen, times, tokens = Seen(), [], 0
    data = post(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
    began = time.perf_counter()
    try:
        async with connected(address) as exchange:
            await exchange.send(data)
            await exchange.begin()
            if exchange.status != 200:
                raise BrokenError(f"{exchange.status}: {(await exchange.body())[:200]!r}")
            async for event in exchange.events():
                if event == "[DONE]":
                    break
                piece = json.loads(event)
                tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
                if any((each.get("delta") or {}).get("content") for each in piece["choices"]):
                    times.append(time.perf_counter())
    except (BrokenError, ConnectionError, ValueError, KeyError) as error:
        seen.failed.append(f"{type(error).__name__}: {error}")
        return seen
    # Servers whose streams do not report token counts send one piece per token.
    seen.seconds, seen.tokens = time.perf_counter() - began, tokens or len(times)
    if times:
        seen.first.append(times[0] - began)
        seen.between += [after - before for before, after in itertools.pairwise(times)]
        if tokens > 1:
            seen.per_token.append((times[-1] - times[0]) / (tokens - 1))
    return seen


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {
        f"{name}_median": median(ordered) if ordered else None,
        f"{name}_p95": ordered[int(0.95 * (len(ordered) - 1))] if ordered else None,
    }
