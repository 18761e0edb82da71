"""Load servers of OpenAI's protocol: rates and waiting times, by number of clients.

    paceline serve --port 8000 --method auto:-suffix
    python benchmarks/serve.py --data DIR --json FILE \
        --server auto=http://127.0.0.1:8000=smollm2-135m \
        --server off=http://127.0.0.1:8000=smollm2-135m=off

--server NAME=URL=MODEL, with =off for paceline's plain decoding or =prediction to send edits with
the text that they edit; may be repeated. Start the servers yourself, with equal threads. They get
the same chats, summaries and edits in turns that rotate; the first is what the others are compared
with. Texts that servers at one URL write differently are counted: there are none if decoding is
lossless. With --leaving a share of the clients hangs up in the middle. --pool different requests are
sent, --at-once of them at a time, at all temperatures (--greedy: at 0); --longest-prompt counts
characters.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx

from common import options, write
from paceline.prompts import PromptRecord, read_prompts

KINDS = {
    "chat": ("mt_bench", "vicuna_bench"),
    "summary": ("cnndm", "xsum"),
    "edit": ("jfleg", "editeval", "canitedit"),
}
"""Kind of work -> files of prompts; missing ones are left out."""
TEMPERATURES = (0.0, 0.8, 0.0, 1.0)
TIMEOUT = 300.0  # seconds


@dataclass
class Server:
    """A row of the table, from NAME=URL=MODEL[=VARIANT]. variant: "off", "prediction" or ""."""

    words: InitVar[str]
    name: str = field(init=False)
    url: str = field(init=False)
    model: str = field(init=False)
    variant: str = field(init=False)

    def __post_init__(self, words: str) -> None:
        self.name, self.url, self.model, self.variant, *more = [*words.split("="), "", "", "", ""]
        if not self.model or self.variant not in ("", "off", "prediction") or any(more):
            raise ArgumentTypeError(f"{words} is not NAME=URL=MODEL[=off|=prediction]")

    def body(self, ask: Ask, run: str) -> dict[str, Any]:
        """The request. run: stands before every prompt, so that an earlier run's is not cached."""
        messages = [
            {"role": "system", "content": f"Run {run}."},
            {"role": "user", "content": ask.record.turns[0]},
        ]
        own: dict[str, Any] = {"paceline": {"method": "off"}} if self.variant == "off" else {}
        if self.variant == "prediction" and ask.kind == "edit" and ask.record.references:
            own = {"prediction": {"type": "content", "content": ask.record.references[0]}}
        return {"model": self.model, "messages": messages, "seed": ask.seed, **own,
                "temperature": ask.temperature, "max_tokens": ask.max_tokens,
                "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """What all servers are asked."""

    kind: str
    record: PromptRecord
    seed: int
    temperature: float
    max_tokens: int


@dataclass
class Seen:
    """What clients saw: seconds to the first token, between pieces, and per token after the first;
    tokens; failures; texts by run and number of the request."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    left: int = 0

    def as_json(self) -> dict[str, Any]:
        times = {"first_token": self.first, "between_pieces": self.between,
                 "per_token": self.per_token}  # fmt: skip
        return {
            "answers": len(self.texts),
            "left": self.left,
            "failed": len(self.failed),
            "complaints": self.failed[:5],
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else 0.0,
            **{f"{name}_median": median(found) if found else None for name, found in times.items()},
            **{f"{name}_p95": _p95(found) for name, found in times.items()},
        }


def _p95(found: Sequence[float]) -> float | None:
    return sorted(found)[int(0.95 * (len(found) - 1))] if found else None


def asks_from(given: Namespace) -> list[Ask]:
    """Requests of all kinds in turns; every kind meets every temperature."""
    piles = []
    for kind in given.kinds:
        paths = [path for name in KINDS[kind] if (path := given.data / f"{name}.jsonl").exists()]
        rows = itertools.zip_longest(*map(read_prompts, paths))
        short = [one for row in rows for one in row
                 if one is not None and len(one.turns[0]) <= given.longest_prompt]  # fmt: skip
        if not short:
            raise SystemExit(f"{given.data} has no prompts of the kind {kind}")
        piles.append((kind, short))
    found = []
    for seed in range(given.pool):
        kind, pile = piles[seed % len(piles)]
        turn, half = seed // len(piles), given.max_tokens // 2
        warmth = 0.0 if given.greedy else TEMPERATURES[turn % len(TEMPERATURES)]
        found.append(Ask(kind, pile[turn % len(pile)], seed, warmth, half + seed % (half + 1)))
    return found


async def study(
    servers: Sequence[Server], asks: Sequence[Ask], given: Namespace
) -> dict[tuple[int, str, str], Seen]:
    """What clients of each server saw by their number and by kind of request, "" for all."""
    total: dict[tuple[int, str, str], Seen] = {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as http:
        for server in servers:  # whatever servers postpone until the first request
            await _ask(http, server, asks[0], "warm", [], False)
        for repeat, count in itertools.product(range(given.repeats), given.at_once):
            shift = repeat % len(servers)
            for place, server in enumerate((*servers[shift:], *servers[:shift])):
                # The same requests for all in a turn, under names that nobody has seen; after as
                # many turns as servers each has had every name once.
                run = f"{repeat // len(servers)}-{count}-{place}"
                kinds = {kind: total.setdefault((count, server.name, kind), Seen())
                         for kind in ("", *given.kinds)}  # fmt: skip
                began = time.perf_counter()
                await _clients(http, server, asks, run, count, kinds, given.leaving)
                kinds[""].seconds += time.perf_counter() - began
                print(f"{count}, {server.name}: done", file=sys.stderr, flush=True)
    return total


async def _clients(
    http: httpx.AsyncClient,
    server: Server,
    asks: Sequence[Ask],
    run: str,
    count: int,
    kinds: Mapping[str, Seen],
    leaving: float,
) -> None:
    """Send all requests, `count` at a time."""
    waiting = deque(asks)

    async def client() -> None:
        while waiting:
            ask = waiting.popleft()
            leaves = Random(f"{run} {ask.seed}").random() < leaving
            began = time.perf_counter()
            await _ask(http, server, ask, run, [kinds[""], kinds[ask.kind]], leaves)
            kinds[ask.kind].seconds += time.perf_counter() - began

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(client())


async def _ask(
    http: httpx.AsyncClient,
    server: Server,
    ask: Ask,
    run: str,
    seen: Sequence[Seen],
    leaves: bool,
) -> None:
    """Send one request, and note what came."""
    times, text, tokens = [], "", 0
    began, path = time.perf_counter(), f"{server.url}/v1/chat/completions"
    try:
        async with http.stream("POST", path, json=server.body(ask, run)) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ValueError(f"{answer.status_code}: {(await answer.aread())[:200]!r}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                piece = json.loads(line.removeprefix("data: "))
                tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
                if said := "".join(
                    (each.get("delta") or {}).get("content") or "" for each in piece["choices"]
                ):
                    times.append(time.perf_counter())
                    text += said
                if leaves and len(times) == 2:  # hangs up
                    for one in seen:
                        one.left += 1
                    return
    except (httpx.HTTPError, ValueError, KeyError) as error:
        for one in seen:
            one.failed.append(f"{type(error).__name__}: {error}")
        return
    tokens = tokens or len(times)  # servers whose streams have no usage send a piece per token
    for one in seen:
        one.texts[run, ask.seed] = text
        one.tokens += tokens
        one.first += [each - began for each in times[:1]]
        one.between += [after - before for before, after in itertools.pairwise(times)]
        if tokens > 1 and times:
            one.per_token.append((times[-1] - times[0]) / (tokens - 1))


def rows_of(
    servers: Sequence[Server], found: Mapping[tuple[int, str, str], Seen], kinds: Sequence[str]
) -> list[dict[str, Any]]:
    """One row for each number of clients and server."""
    rows = []
    for count in dict.fromkeys(count for count, _, _ in found):
        base = found[count, servers[0].name, ""].as_json()["tokens_per_second"]
        for server in servers:
            seen = found[count, server.name, ""]
            whole = seen.as_json()
            others = [found[count, one.name, ""].texts for one in servers if one.url == server.url]
            known = {place: text for texts in reversed(others) for place, text in texts.items()}
            rows.append(
                {
                    "clients": count,
                    "server": server.name,
                    "variant": server.variant or "auto",
                    "over_first": whole["tokens_per_second"] / base if base else None,
                    "different_texts": sum(known[one] != text for one, text in seen.texts.items()),
                    **whole,
                    "kinds": {kind: found[count, server.name, kind].as_json() for kind in kinds},
                }
            )
    return rows


def main() -> None:
    given = options(
        __doc__, data=Path, json=Path, server=list[Server], at_once="1,4,16", repeats=1, pool=24,
        kinds=",".join(KINDS), max_tokens=48, longest_prompt=1200, greedy=False, leaving=0.0,
    )  # fmt: skip
    given.kinds, given.at_once = given.kinds.split(","), [*map(int, given.at_once.split(","))]
    if not given.server:
        raise SystemExit("name at least one --server")
    asks = asks_from(given)
    rows = rows_of(given.server, asyncio.run(study(given.server, asks, given)), given.kinds)
    write(given.json, {"requests": len(asks), "repeats": given.repeats, "rows": rows})
    for row in rows:
        print(*(f"{key} {row[key]}" for key in ("clients", "server", "tokens_per_second",
              "first_token_median", "failed", "left", "different_texts")), sep=", ")  # fmt: skip
    if not any(row["tokens"] for row in rows):
        raise SystemExit(f"no request was answered: {rows[0]['complaints']}")


if __name__ == "__main__":
    main()
