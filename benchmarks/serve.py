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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx

from common import options, run_script, write
from paceline.bench.comparison import in_turns
from paceline.errors import UsageError, check_known
from paceline.prompts import PromptRecord, read_prompts

KINDS = {
    "chat": ("mt_bench", "vicuna_bench"),
    "summary": ("cnndm", "xsum"),
    "edit": ("jfleg", "editeval", "canitedit"),
}
"""Kind of work -> files of prompts; missing ones are left out."""
TEMPERATURES = (0.0, 0.8, 0.0, 1.0)
TIMEOUT = 300.0  # seconds


class Server:
    """A row of the table, from NAME=URL=MODEL[=VARIANT]. variant: "off", "prediction" or ""."""

    def __init__(self, words: str) -> None:
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
class Reply:
    """What a client saw of one request. times: of pieces, in seconds since it was sent, as is the
    end of it all; failed: why, or ""; left: the client hung up."""

    ask: Ask
    run: str
    times: list[float] = field(default_factory=list)
    seconds: float = 0.0
    text: str = ""
    tokens: int = 0
    failed: str = ""
    left: bool = False


def summary(replies: Sequence[Reply], seconds: float) -> dict[str, Any]:
    """Rates and waiting times; seconds: that all of it took."""
    complaints = [one.failed for one in replies if one.failed]
    answers = [one for one in replies if not (one.failed or one.left)]
    tokens = sum(one.tokens for one in answers)
    found = {
        "answers": len(answers),
        "left": sum(one.left for one in replies),
        "failed": len(complaints),
        "complaints": complaints[:5],
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
    }
    timed = [one for one in answers if one.times]
    for name, values in {
        "first_token": [one.times[0] for one in timed],
        "between_pieces": [b - a for one in timed for a, b in itertools.pairwise(one.times)],
        "per_token": [(one.times[-1] - one.times[0]) / (one.tokens - 1) for one in timed if one.tokens > 1],
    }.items():  # fmt: skip
        found[f"{name}_median"] = median(values) if values else None
        found[f"{name}_p95"] = sorted(values)[-(-19 * len(values) // 20) - 1] if values else None
    return found


def asks_from(given: Namespace) -> list[Ask]:
    """Requests of all kinds in turns; every kind meets every temperature."""
    piles = []
    for kind in given.kinds:
        paths = [path for name in KINDS[kind] if (path := given.data / f"{name}.jsonl").exists()]
        rows = itertools.zip_longest(*map(read_prompts, paths))
        short = [one for row in rows for one in row
                 if one is not None and len(one.turns[0]) <= given.longest_prompt]  # fmt: skip
        if not short:
            raise UsageError(f"{given.data} has no prompts of the kind {kind}")
        piles.append((kind, short))
    found = []
    for seed in range(given.pool):
        kind, pile = piles[seed % len(piles)]
        turn, half = seed // len(piles), given.max_tokens // 2
        warmth = 0.0 if given.greedy else TEMPERATURES[turn % len(TEMPERATURES)]
        found.append(Ask(kind, pile[turn % len(pile)], seed, warmth, half + seed % (half + 1)))
    return found


Found = dict[tuple[int, str], tuple[list[Reply], float]]
"""By number of clients and server: replies, and seconds of it all."""


async def study(servers: Sequence[Server], asks: Sequence[Ask], given: Namespace) -> Found:
    """Send all requests to every server, in turns."""
    found: Found = {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as http:
        for server in servers:  # whatever servers postpone until the first request
            await send(http, server, Reply(asks[0], "warm"), False)
        for repeat, count in itertools.product(range(given.repeats), given.at_once):
            for place, server in enumerate(in_turns(servers, repeat)):
                # The same requests for all in a turn, under names that nobody has seen; after as
                # many turns as servers each has had every name once.
                run = f"{repeat // len(servers)}-{count}-{place}"
                replies, seconds = found.get((count, server.name), ([], 0.0))
                replies += [Reply(ask, run) for ask in asks]
                began = time.perf_counter()
                waiting = deque(replies[-len(asks) :])
                async with asyncio.TaskGroup() as group:
                    for _ in range(count):
                        group.create_task(client(http, server, waiting, given.leaving))
                seconds += time.perf_counter() - began
                found[count, server.name] = replies, seconds
                print(f"{count}, {server.name}: done", file=sys.stderr, flush=True)
    return found


async def client(
    http: httpx.AsyncClient, server: Server, waiting: deque[Reply], leaving: float
) -> None:
    """Send what waits, request by request."""
    while waiting:
        reply = waiting.popleft()
        began = time.perf_counter()
        await send(http, server, reply, Random(f"{reply.run} {reply.ask.seed}").random() < leaving)
        reply.seconds = time.perf_counter() - began


async def send(http: httpx.AsyncClient, server: Server, reply: Reply, leaves: bool) -> None:
    """Send one request, and note what comes."""
    began, path = time.perf_counter(), f"{server.url}/v1/chat/completions"
    try:
        body = server.body(reply.ask, reply.run)
        async with http.stream("POST", path, json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ValueError(f"{answer.status_code}: {(await answer.aread())[:200]!r}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                piece = json.loads(line.removeprefix("data: "))
                reply.tokens = (piece.get("usage") or {}).get("completion_tokens", reply.tokens)
                if said := "".join(
                    (each.get("delta") or {}).get("content") or "" for each in piece["choices"]
                ):
                    reply.times.append(time.perf_counter() - began)
                    reply.text += said
                if leaves and len(reply.times) == 2:
                    reply.left = True
                    return
    except (httpx.HTTPError, ValueError, KeyError) as error:
        reply.failed = f"{type(error).__name__}: {error}"
    # Servers whose streams have no usage send a piece per token.
    reply.tokens = reply.tokens or len(reply.times)


def rows_of(servers: Sequence[Server], found: Found, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each number of clients and server."""
    rows = []
    for count, server in itertools.product(dict.fromkeys(count for count, _ in found), servers):
        replies, seconds = found[count, server.name]
        base = summary(*found[count, servers[0].name])["tokens_per_second"]
        whole = summary(replies, seconds)
        alike = [each.name for each in servers if each.url == server.url]
        known = {p: text for name in reversed(alike) for p, text in _texts(found[count, name])}
        by_kind = {kind: [one for one in replies if one.ask.kind == kind] for kind in kinds}
        rows.append(
            {
                "clients": count,
                "server": server.name,
                "variant": server.variant or "auto",
                "over_first": whole["tokens_per_second"] / base if base else None,
                "different_texts": sum(known[p] != text for p, text in _texts(found[count, server.name])),
                **whole,
                "kinds": {kind: summary(own, sum(one.seconds for one in own)) for kind, own in by_kind.items()},
            }
        )  # fmt: skip
    return rows


def _texts(found: tuple[list[Reply], float]) -> list[tuple[tuple[str, int], str]]:
    """Whole answers, by run and number of the request."""
    whole = (one for one in found[0] if not (one.failed or one.left))
    return [((one.run, one.ask.seed), one.text) for one in whole]


def main() -> None:
    given = options(
        __doc__, data=Path, json=Path, server=list[Server], at_once="1,4,16", repeats=1, pool=24,
        kinds=",".join(KINDS), max_tokens=48, longest_prompt=1200, greedy=False, leaving=0.0,
    )  # fmt: skip
    given.kinds, given.at_once = given.kinds.split(","), given.at_once.split(",")
    check_known("--kinds", KINDS, *given.kinds)
    if not all(each.isdecimal() and int(each) for each in given.at_once):
        raise UsageError("--at-once takes numbers from 1 on, such as 1,4,16")
    given.at_once = [int(each) for each in given.at_once]
    if not given.server:
        raise UsageError("name at least one --server")
    asks = asks_from(given)
    rows = rows_of(given.server, asyncio.run(study(given.server, asks, given)), given.kinds)
    write(given.json, {"requests": len(asks), "repeats": given.repeats, "rows": rows})
    for row in rows:
        print(*(f"{key} {row[key]}" for key in ("clients", "server", "tokens_per_second",
              "first_token_median", "failed", "left", "different_texts")), sep=", ")  # fmt: skip
    if not any(row["tokens"] for row in rows):
        raise SystemExit(f"no request was answered: {rows[0]['complaints']}")


if __name__ == "__main__":
    run_script(main)
