"""Compare `paceline serve` with other servers of OpenAI's protocol on the same model and requests.

    python benchmarks/serve_peers.py --data DIR --json FILE \
        --transformers PYTHON --llama-cpp PYTHON [--smoke]

PYTHON is the interpreter of an environment that has the server; servers left out are not measured:

    --transformers   pip install 'transformers[serving]' torch accelerate
    --llama-cpp      pip install 'llama-cpp-python[server]'

All servers run at once, with the same number of threads, and get requests in turns; the others are
idle. Requests are greedy chats, summaries and edits. llama.cpp and paceline run the same GGUF file,
transformers its weights as --dtype. Tokens are those of the server's own usage, or pieces of text
if its streams have no usage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from paceline.machine import describe_run
from paceline.models import load_causal_lm
from paceline.models.source import resolve
from serve_http import Address, call, post
from serve_malformed import CHAT
from serve_pool import TASKS, Ask, asks_from
from serve_process import START_SECONDS, STOP_SECONDS, server
from serve_rates import Seen, measure
from tables import new_table, number, show, shown_command

BASE = "paceline, plain"
"""The baseline of the others."""


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    model: its name on the server. variant: see `serve_rates`. at_once: requests in progress
    together; others wait.
    """

    name: str
    url: str
    model: str
    variant: str = "auto"
    at_once: int = 1


@dataclass(frozen=True)
class Peer:
    """Another server. words: its command, to which `--host` and `--port` are added."""

    name: str
    words: Sequence[str]
    model: str
    at_once: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m", help="one that is a GGUF file")
    parser.add_argument("--method", default="auto:-suffix")
    parser.add_argument("--transformers", type=_program)
    parser.add_argument("--llama-cpp", type=_program)
    parser.add_argument("--dtype", default="bfloat16", help="of transformers' weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--at-once", type=lambda text: [*map(int, text.split(","))], default=[1, 4, 16])  # fmt: skip
    parser.add_argument("--pool", type=int, default=24, help="different requests")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--longest-prompt", type=int, default=1200, help="characters")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="two requests of 8 tokens")
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(pool=2, max_tokens=8, at_once=[1, 2])
    asks = [
        replace(ask, temperature=0.0)
        for ask in asks_from(options.data, options.pool, options.max_tokens, options.longest_prompt)
    ]
    with tempfile.TemporaryDirectory() as folder, running(options, Path(folder)) as entries:
        seen = {entry.name: asyncio.run(alone(entry, asks[0])) for entry in entries}
        rows = asyncio.run(study(entries, asks, options.at_once, options.repeats))
    show_rows(rows)
    content = {
        **describe_run(),
        "command": shown_command(),
        "model": options.model,
        "threads": options.threads,
        "dtype": options.dtype,
        "requests": len(asks),
        "repeats": options.repeats,
        "first_request": seen,
        "rows": rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _program(text: str) -> Path:
    return Path(text).absolute()


@contextmanager
def running(options: argparse.Namespace, folder: Path) -> Iterator[list[Entry]]:
    """Start all requested servers, and yield their entries when all answer."""
    words = ["--model", options.model, "--method", options.method]
    words += ["--threads", str(options.threads)]
    with ExitStack() as started:
        own = started.enter_context(server(words, folder / "paceline.log"))
        entries = [
            Entry(BASE, own.url, options.model, "off", at_once=16),
            Entry(f"paceline, {options.method}", own.url, options.model, at_once=16),
        ]
        for peer in peers(options, folder):
            url = started.enter_context(process(peer, folder / f"{peer.name}.log"))
            entries.append(Entry(peer.name, url, peer.model, at_once=peer.at_once))
        yield entries


def peers(options: argparse.Namespace, folder: Path) -> list[Peer]:
    """The other servers that the options ask for."""
    found = []
    threads = str(options.threads)
    if options.transformers:
        weights = str(folder / "weights")
        loaded = load_causal_lm(options.model, device="cpu", dtype=options.dtype)
        loaded.model.save_pretrained(weights)
        loaded.tokenizer.save_pretrained(weights)
        program = str(options.transformers.with_name("transformers"))
        words = [program, "serve", weights, "--device", "cpu", "--dtype", options.dtype]
        environment = {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
        found += [
            Peer("transformers", words, weights, environment=environment),
            Peer("transformers, continuous batching", [*words, "--continuous-batching"],
                 weights, 16, environment),
        ]  # fmt: skip
    if options.llama_cpp:
        words = [str(options.llama_cpp), "-m", "llama_cpp.server"]
        words += ["--model", str(gguf_of(options.model)), "--model_alias", options.model]
        words += ["--n_threads", threads, "--n_threads_batch", threads, "--n_ctx", "4096"]
        # Otherwise a new request would cut off the one in progress.
        words += ["--interrupt_requests", "false"]
        lookup = ["--draft_model", "prompt-lookup-decoding"]
        found += [
            Peer("llama.cpp", words, options.model),
            Peer("llama.cpp, prompt lookup", [*words, *lookup], options.model),
        ]
    return found


def gguf_of(model: str) -> Path:
    """The file that paceline runs."""
    source = resolve(model)
    if source.folder is None or source.gguf_file is None:
        raise SystemExit(f"{model} is no GGUF file, which llama.cpp needs")
    return source.folder / source.gguf_file


@contextmanager
def process(peer: Peer, log: Path) -> Iterator[str]:
    """The server's URL, from when it answers until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*peer.words, "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, **peer.environment}
    environment.pop("PYTHONPATH", None)
    with log.open("w") as file:
        # Run elsewhere: `-m llama_cpp.server` would find llama_cpp.py here.
        began = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=log.parent)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, began, log)
        yield url
    finally:
        began.terminate()
        try:
            began.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            began.kill()
            began.wait()


def wait_for(url: str, began: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers. Raises SystemExit if it does not."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and began.poll() is None:
        try:
            with urlopen(f"{url}/openapi.json", timeout=5) as response:  # noqa: S310
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{began.args} does not answer:\n{log.read_text()[-2000:]}")


async def alone(entry: Entry, ask: Ask) -> dict[str, Any]:
    """Send the first request whole and as a stream, to see whether servers read the same prompt and
    count the same tokens. Also makes servers load the model if they postponed that."""
    body = ask.body(entry.model)
    if entry.variant == "off":
        body["paceline"] = {"method": "off"}
    reply = await call(Address.of(entry.url), post(CHAT, body))
    if reply.status != 200:
        raise SystemExit(f"{entry.name} answers {reply.status}: {reply.body[:500]!r}")
    answer = reply.json()
    streamed = await measure(Address.of(entry.url), entry.model, [ask], entry.variant, 1, "first")
    return {
        "prompt_tokens": answer["usage"]["prompt_tokens"],
        "completion_tokens": answer["usage"]["completion_tokens"],
        "streamed_tokens": streamed["all"].tokens,
        "text": answer["choices"][0]["message"]["content"],
    }


async def study(
    entries: Sequence[Entry], asks: Sequence[Ask], clients: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """Measure all servers at all numbers of clients, in turns that rotate."""
    total: dict[tuple[int, str], Seen] = {}
    for repeat in range(repeats):
        for place, count in enumerate(clients):
            shift = (repeat + place) % len(entries)
            for entry in (*entries[shift:], *entries[:shift]):
                # Nearly the same prompts for all, and none that a server has read before.
                name = f"{repeat}-{count}-{int(entry.variant == 'off')}"
                seen = await measure(
                    Address.of(entry.url), entry.model, asks, entry.variant, count, name
                )
                known = total.setdefault((count, entry.name), Seen())
                known += seen["all"]
                print(f"{count}, {entry.name}: done", file=sys.stderr, flush=True)
    rows = []
    for count in clients:
        base = rate(total[count, BASE])
        for entry in entries:
            seen_here = total[count, entry.name]
            speed = rate(seen_here)
            rows.append(
                {
                    "clients": count,
                    "server": entry.name,
                    "at_once": min(entry.at_once, count),
                    "over_plain": speed / base if base else None,
                    **seen_here.as_json(),
                    "complaints": seen_here.failed[:5],
                }
            )
    return rows


def rate(seen: Seen) -> float:
    """Tokens per second."""
    return seen.tokens / seen.seconds if seen.seconds else 0.0


def show_rows(rows: Sequence[dict[str, Any]]) -> None:
    """The runs as a table."""
    columns = ("tokens/s", "over plain", "first token", "failed")
    table = new_table(f"servers, {', '.join(TASKS)}", "clients, server", *columns)
    for row in rows:
        first = row["first_token_median"]
        table.add_row(
            f"{row['clients']}, {row['server']}",
            number(row["tokens_per_second"]),
            number(row["over_plain"], "x"),
            number(1000 * first if first is not None else None, " ms"),
            str(row["failed"]),
        )
    show(table)


if __name__ == "__main__":
    main()
