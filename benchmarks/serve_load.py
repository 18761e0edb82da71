"""Load `paceline serve` from this machine and check whether answers are right, and how fast.

    python benchmarks/serve_load.py soak --data DIR --json FILE [--smoke]
    python benchmarks/serve_load.py throughput --data DIR --json FILE

soak        clients for a while: most request chats, summaries and edits and compare every answer
            with the one that a session writes alone, some hang up in the middle, some send what
            must be refused; also the server's memory, and how it stops
throughput  tokens per second and waiting times at several numbers of clients, the server's method
            against plain decoding

The script starts a server, unless --url names one (for `throughput --variants auto`, of any kind).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.machine import describe_run
from serve_http import Address
from serve_pool import TASKS, Ask, asks_from, expected_answers
from serve_process import ServerProcess, resident_bytes, server
from serve_rates import VARIANTS, show_rates, study
from serve_soak import Scene, Tally, at_rest, soak
from tables import shown_command

SMOKE = {"clients": 8, "seconds": 20.0}
POINTS = 60
"""How often the server's memory is read."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=("soak", "throughput"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--name", help="of the model there; default: --model")
    parser.add_argument("--pid", type=int, help="of that server, to watch its memory")
    parser.add_argument("--pool", type=int, default=24, help="different requests")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--longest-prompt", type=int, default=1200, help="characters")
    parser.add_argument("--kinds", type=words, default=[*TASKS], help="of requests")
    parser.add_argument("--seed", type=int, default=0)
    soaking = parser.add_argument_group("soak")
    soaking.add_argument("--clients", type=int, default=64)
    soaking.add_argument("--seconds", type=float, default=600.0)
    soaking.add_argument("--leaving", type=float, default=0.25, help="share of clients")
    soaking.add_argument("--misbehaving", type=float, default=0.1, help="share of clients")
    soaking.add_argument("--smoke", action="store_true", help="8 clients for 20 seconds")
    rates = parser.add_argument_group("throughput")
    rates.add_argument("--at-once", type=lambda text: [*map(int, text.split(","))], default=[1, 4, 16])  # fmt: skip
    rates.add_argument("--variants", type=words, default=[*VARIANTS])
    rates.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    for name, known in (("variants", VARIANTS), ("kinds", TASKS)):
        if unknown := {*getattr(options, name)} - {*known}:
            parser.error(f"{name} are {', '.join(known)}, not {', '.join(unknown)}")
    if options.smoke:
        vars(options).update(SMOKE)
    content = {
        **describe_run(),
        "command": shown_command(),
        "model": options.model,
        "method": options.method,
        **(soaked(options) if options.study == "soak" else measured(options)),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if content.get("well") is False else 0)


def words(text: str) -> list[str]:
    """The words of an option, separated by commas."""
    return text.split(",")


def pool_of(options: argparse.Namespace) -> list[Ask]:
    """The requests that the options ask for."""
    return asks_from(
        options.data, options.pool, options.max_tokens, options.longest_prompt, options.kinds
    )


def soaked(options: argparse.Namespace) -> dict[str, Any]:
    """The study `soak`, including whether all was well."""
    asks = pool_of(options)
    expected = expected_answers(asks, options.model, {"weights": options.weights})
    note(f"{len(asks)} requests answered alone")
    tally, memory = Tally(), []
    with running(options) as (url, pid, process):

        async def work() -> bool:
            scene = Scene(
                Address.of(url), name_of(options), asks, expected, tally,
                time.monotonic() + options.seconds,
            )  # fmt: skip
            watching = asyncio.ensure_future(watch(pid, options.seconds, memory, tally))
            shares = (options.leaving, options.misbehaving)
            await soak(scene, options.clients, shares, options.seed)
            watching.cancel()
            return await at_rest(scene)

        rested = asyncio.run(work())
        stopped = process.stop() if process is not None else None
        logged = [] if process is None else [*process.events()]
    errors = [line for line in logged if line.get("level") == "error"]
    well = (
        not (tally.faults or errors) and rested and (stopped is None or stopped["exit_code"] == 0)
    )
    note(f"{dict(tally.counts)}; faults: {tally.faults}; stopped: {stopped}")
    return {
        "clients": options.clients,
        "seconds": options.seconds,
        **tally.as_json(),
        "memory": memory,
        "at_rest_afterwards": rested,
        "errors_in_the_log": [str(line)[:1000] for line in errors[:10]],
        "stopped": stopped,
        "well": well,
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The study `throughput`."""
    asks = pool_of(options)
    with running(options) as (url, _, _):
        rows = asyncio.run(
            study(
                Address.of(url),
                name_of(options),
                asks,
                options.at_once,
                options.variants,
                options.repeats,
            )
        )
    show_rates(rows)
    return {"requests": len(asks), "repeats": options.repeats, "rows": rows}


@contextmanager
def running(options: argparse.Namespace) -> Iterator[tuple[str, int | None, ServerProcess | None]]:
    """The server's URL, its process id if known, and its process if it is ours."""
    if options.url:
        yield options.url, options.pid, None
        return
    words = ["--model", options.model, "--method", options.method, "--weights", options.weights]
    words += ["--max-batch", str(options.max_batch)]
    words += [] if options.threads is None else ["--threads", str(options.threads)]
    with tempfile.TemporaryDirectory() as folder, server(words, Path(folder) / "log") as process:
        note(f"the server listens after {process.start_seconds:.1f} s")
        yield process.url, process.pid, process


async def watch(
    pid: int | None, seconds: float, memory: list[dict[str, Any]], tally: Tally
) -> None:
    """Read the server's memory about `POINTS` times."""
    began = time.monotonic()
    while pid is not None:
        after, resident = time.monotonic() - began, resident_bytes(pid)
        memory.append(
            {
                "after": round(after, 1),
                "resident_bytes": resident,
                "answers": tally.counts["answers"],
            }
        )
        await asyncio.sleep(seconds / POINTS)


def name_of(options: argparse.Namespace) -> str:
    """The model's name on the server."""
    path = Path(options.model)
    return options.name or (path.name if path.exists() else options.model)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
