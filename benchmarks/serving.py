"""A server under load, asked over HTTP as its users ask it.

    paceline serve --port 8000 &
    python benchmarks/serving.py speed --json speed.json
    python benchmarks/serving.py soak --clients 64 --seconds 600 --pid PID --json soak.json

speed       tokens per second, time to the first token and time per token for 1, 4, 16 clients, with
            the server's method and with `off`; and edits with and without `prediction`
soak        many clients for a while: a quarter hang up at random, some send what is malformed; every
            answer is compared with the one that plain decoding gave alone before

Any server with OpenAI's protocol will do for `speed --methods server`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import httpx

from paceline.prompts import demo_prompts, read_prompts

MALFORMED: list[dict[str, Any]] = [
    {"temperature": 9}, {"messages": []}, {"messages": "x"}, {"n": 0}, {"stop": [""]}, {"seed": "x"},
    {"max_tokens": -1}, {"logit_bias": {"x": 1}}, {"model": "other"}, {"tools": [{}]},
    {"tool_choice": "required"}, {"response_format": {"type": "x"}}, {"top_logprobs": 3},
    {"structured_outputs": {"regex": "("}}, {"paceline": {"method": "x"}}, {"stream": 7},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"guided_json": {}},
]  # fmt: skip
VALUES: list[Any] = [None, -1, 1.5, "x", "", [], {}, [[]], {"a": None}, True, 1 << 80, "\u0000"]
FIELDS = (
    "messages", "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed", "max_tokens",
    "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "stream",
    "stream_options", "prediction", "structured_outputs", "paceline", "presence_penalty",
)  # fmt: skip


@dataclass
class Answer:
    """What came of one request. Times in seconds from its start."""

    text: str = ""
    tokens: int = 0
    first: float = 0.0
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


def prompts_of(options: argparse.Namespace) -> list[str]:
    """Questions of all files in turns, or of the demonstration."""
    if options.data is None:
        return [record.turns[0] for record in demo_prompts()]
    files = [read_prompts(options.data / f"{task}.jsonl") for task in options.tasks.split(",")]
    found = [file[place].turns[0] for place in range(100) for file in files if place < len(file)]
    return [text for text in found if len(text) < options.longest]


def order(options: argparse.Namespace, text: str, **fields: Any) -> dict[str, Any]:
    """A streamed chat, greedy unless the fields say otherwise."""
    body: dict[str, Any] = {
        "model": options.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": options.tokens,
        "temperature": 0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body | fields


async def ask(
    client: httpx.AsyncClient, body: dict[str, Any], hang_up: float = 1e9
) -> Answer | None:
    """The answer, read piece by piece; None where we hang up before it is complete."""
    begun, answer = monotonic(), Answer()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            await response.aread()
            raise RuntimeError(f"{response.status_code}: {response.text[:200]}")
        async for line in response.aiter_lines():
            if monotonic() - begun > hang_up:
                return None
            if not line.startswith("data: {"):
                continue
            piece = json.loads(line.removeprefix("data: "))
            if "error" in piece:
                raise RuntimeError(str(piece["error"]))
            for choice in piece["choices"]:
                said = choice["delta"].get("content") or ""
                answer.first = answer.first or (monotonic() - begun if said else 0.0)
                answer.text += said
            if piece.get("usage"):
                answer.tokens = piece["usage"]["completion_tokens"]
                answer.details = piece["usage"].get("completion_tokens_details") or {}
    answer.seconds = monotonic() - begun
    return answer


async def whole(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    """An answer that nobody hangs up on."""
    answer = await ask(client, body)
    if answer is None:
        raise RuntimeError("it took for ever")
    return answer


async def together(
    client: httpx.AsyncClient, bodies: list[dict[str, Any]], clients: int
) -> tuple[list[Answer], float]:
    """Answers to all of them, so many at a time, and the seconds that took."""
    places = iter(range(len(bodies)))
    answers: dict[int, Answer] = {}

    async def one() -> None:
        for place in places:
            answers[place] = await whole(client, bodies[place])

    begun = monotonic()
    await asyncio.gather(*(one() for _ in range(clients)))
    return [answers[place] for place in range(len(bodies))], monotonic() - begun


def figures(answers: list[Answer], seconds: float) -> dict[str, float]:
    """Of one run."""
    tokens = sum(answer.tokens for answer in answers)
    each = [
        (answer.seconds - answer.first) / (answer.tokens - 1)
        for answer in answers
        if answer.tokens > 1
    ]
    return {
        "tokens_per_second": round(tokens / seconds, 1),
        "first_token_ms": round(1000 * median(answer.first for answer in answers), 1),
        "per_token_ms": round(1000 * median(each), 2),
    }


async def speed(client: httpx.AsyncClient, options: argparse.Namespace) -> dict[str, Any]:
    """Every number of clients asks what nobody has asked before. A session remembers prompts and
    answers, so of each question the first method is the server's own, and the others ask it with
    another beginning."""
    fresh = iter(prompts_of(options))
    found: dict[str, Any] = {"clients": {}}
    await together(client, [order(options, text) for text, _ in zip(fresh, range(4))], 1)
    for clients in map(int, options.at_once.split(",")):
        count = options.repeats * max(4, clients)
        texts = [text for text, _ in zip(fresh, range(count))]
        runs = {}
        for number, method in enumerate(options.methods.split(",")):
            extra = {} if method == "server" else {"paceline": {"method": method}}
            bodies = [order(options, f"({number + 1}) {text}", **extra) for text in texts]
            answers, seconds = await together(client, bodies, clients)
            runs[method] = {"texts": len(texts), **figures(answers, seconds)}
        found["clients"][clients] = runs
        print(clients, json.dumps(runs), file=sys.stderr)
    found["prediction"] = await predictions(client, options)
    return found


async def predictions(client: httpx.AsyncClient, options: argparse.Namespace) -> dict[str, Any]:
    """Edits one at a time, with and without the edited text as a prediction."""
    runs: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    counted: Counter[str] = Counter()
    for repeat in range(options.repeats):
        names = [f"field_{repeat}_{place}" for place in range(6)]
        code = "".join(f"    {name}: int = {place}\n" for place, name in enumerate(names))
        text = f"class Settings{repeat}:\n    pages: int = 7\n{code}"
        question = f"Repeat this code word by word, in a code block:\n```python\n{text}```"
        for name in runs:
            extra = {"prediction": {"type": "content", "content": text}} if name == "with" else {}
            body = order(options, f"{question}\n", max_tokens=160, **extra)
            answer = await whole(client, body)
            runs[name].append(figures([answer], answer.seconds))
            if extra:
                counted.update({k: v for k, v in answer.details.items() if isinstance(v, int)})
    best = {
        name: max(each, key=lambda run: run["tokens_per_second"]) for name, each in runs.items()
    }
    return {**best, "counted": dict(counted)}


async def soak(client: httpx.AsyncClient, options: argparse.Namespace) -> dict[str, Any]:
    """Clients that ask, hang up and send nonsense until time is up."""
    rng = random.Random(options.seed)
    kinds = [
        order(options, text, temperature=temperature, seed=seed)
        for text in prompts_of(options)
        for temperature, seed in ((0, 0), (0.9, 1), (0.9, 2))
    ]
    plain = {"paceline": {"method": "off"}}
    expected = [await whole(client, body | plain) for body in kinds]
    seen: Counter[str] = Counter()
    memory = [resident_megabytes(options.pid)]
    end = monotonic() + options.seconds

    async def one() -> None:
        while monotonic() < end:
            seen[await act(client, rng, kinds, expected, options)] += 1

    async def watch() -> None:
        while monotonic() < end:
            await asyncio.sleep(min(10, options.seconds / 6))
            memory.append(resident_megabytes(options.pid))
            print(dict(seen), memory[-1], file=sys.stderr)

    await asyncio.gather(watch(), *(one() for _ in range(options.clients)))
    state = (await client.get("/state")).json()
    return {"outcomes": dict(seen), "memory_mb": memory, "left": state}


async def act(
    client: httpx.AsyncClient,
    rng: random.Random,
    kinds: list[dict[str, Any]],
    expected: list[Answer],
    options: argparse.Namespace,
) -> str:
    """One thing that a client does, and what came of it."""
    place, kind = rng.randrange(len(kinds)), rng.random()
    if kind < 0.1:
        wrong = (
            rng.choice(MALFORMED)
            if rng.random() < 0.5
            else {rng.choice(FIELDS): rng.choice(VALUES)}
        )
        body = {**kinds[place], "max_tokens": 2, **wrong}
        status = (await client.post("/v1/chat/completions", json=body)).status_code
        return "answered" if status == 200 else f"refused {status}"
    try:
        answer = await ask(client, kinds[place], rng.random() * 3 if kind < 0.35 else 1e9)
    except RuntimeError as error:
        status = str(error).partition(":")[0]
        if status == "429":
            await asyncio.sleep(1)
        return f"status {status}"
    if answer is None:
        return "hung up"
    return "right" if answer.text == expected[place].text else "WRONG"


def resident_megabytes(pid: int | None) -> float:
    """Of the server; 0 where nobody told which process it is."""
    if pid is None:
        return 0.0
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The study that was asked for."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=options.url, timeout=600, limits=limits) as client:
        return await STUDIES[options.study](client, options)


STUDIES = {"speed": speed, "soak": soak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--methods", default="server,off")
    parser.add_argument("--at-once", default="1,4,16")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pid", type=int, help="of the server, whose memory is watched")
    parser.add_argument("--data", type=Path, help="folder of prompt files")
    parser.add_argument("--tasks", default="mt_bench,xsum,editeval")
    parser.add_argument("--longest", type=int, default=4000, help="characters of a prompt")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {"study": options.study, **asyncio.run(run(options))}
    text = json.dumps(found, indent=2)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
