"""Measure what drafting with Chimera costs beside a target pass, and what its n-gram store saves.

    python benchmarks/chimera_costs.py --json benchmarks/results/heads/costs-smollm2-135m.json

Every setting answers the same prompts with a new drafter: first cold, then again with the store
that the first run filled; the paper's program measures only the second. Settings are the shipped
ones, with as many levels as pay and with every level grown. Medusa's heads are measured too;
--weights sets how the layers of both are stored.

The share of a pass is reported twice: from the medians of rounds, and from total times, which is
larger if a few rounds are slow.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import paceline
from paceline.drafters import make_drafter
from paceline.drafters.chimera import ChimeraSettings
from paceline.loop import Generation, decode
from paceline.machine import describe_run
from paceline.protocols import Drafter
from paceline.records import Round
from paceline.session import Session
from paceline.stopping import Stopping

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that merges two sorted lists.",
    "Summarize the plot of Hamlet in three sentences.",
)
STORES = {
    "none": ("no store", "cache=0"),
    "memory": ("in memory", "cache=8192"),
    "dictionary": ("in memory, dictionary", "cache=8192,dictionary=4096"),
    "disk": ("small, on disk", "cache=64,spill={spill}"),
}
LEVELS = {"as many as pay": "", "all": "depth=8,least=0,"}


@dataclass(frozen=True)
class Row:
    """A setting: the method's name, and its settings as reported."""

    method: str
    settings: str = ""
    levels: str = ""
    beam: int | None = None
    store: str = ""
    weights: str = ""


def rows(options: argparse.Namespace) -> list[Row]:
    """Medusa, then Chimera with all requested settings."""
    return [
        *(Row("medusa", f"weights={kind}", weights=kind) for kind in options.weights.split(",")),
        *(
            Row(
                "chimera",
                f"{least}beam={beam},{settings},weights={kind}",
                name,
                int(beam),
                store,
                kind,
            )
            for name, least in LEVELS.items()
            for kind in options.weights.split(",")
            for beam in options.beams.split(",")
            for store, settings in (STORES[key] for key in options.stores.split(","))
        ),
    ]


def play(
    session: Session, drafter: Drafter, ids: Sequence[int], options: argparse.Namespace
) -> list[Round]:
    """The rounds after the prompt."""
    session.target.forget()
    generation = Generation(ids, drafter, Stopping(options.max_new_tokens))
    played = decode(session.target, [generation], options.budget)
    return [done for done in played if not done.first]


def measure(
    session: Session, method: str, settings: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Milliseconds per round and where n-grams were found, cold and warm."""
    drafter = make_drafter(
        f"{method}:{settings}" if settings else method,
        session.host.fresh(),  # its store is cold
    )
    found: dict[str, Any] = {}
    texts = [session.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    for name in ("cold", "warm"):
        lookups = getattr(drafter, "lookups", None)
        before = dict(vars(lookups)) if lookups else {}
        rounds = [done for ids in texts for done in play(session, drafter, ids, options)]
        draft = [1e3 * done.seconds.draft for done in rounds]
        target = [1e3 * done.seconds.target for done in rounds]
        found[name] = {
            "rounds": len(rounds),
            "tokens_per_pass": round(mean(len(done.path.tokens) for done in rounds), 3),
            "draft_ms": round(median(draft), 3),
            "target_ms": round(median(target), 3),
            "share": round(median(draft) / median(target), 4),
            "total_share": round(sum(draft) / sum(target), 4),
        }
        if lookups:
            counts = {key: value - before[key] for key, value in vars(lookups).items()}
            found[name]["lookups"] = counts
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--json", type=Path, required=True)
    shipped = ChimeraSettings().beam
    parser.add_argument("--beams", default=f"1,{shipped}")
    parser.add_argument("--stores", default=",".join(STORES), help=f"of {', '.join(STORES)}")
    parser.add_argument("--weights", default="native,fastest", help="of linear layers")
    parser.add_argument("--budget", type=int, default=16, help="nodes of a tree at most")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    options = parser.parse_args()
    if set(options.stores.split(",")) - STORES.keys():
        parser.error(f"--stores has other names than {', '.join(STORES)}")
    report(options)


def report(options: argparse.Namespace) -> None:
    """Measure row by row, writing the file after each."""
    session = paceline.load(options.model, method="plain")
    began, found = perf_counter(), list[dict[str, Any]]()
    for row in rows(options):
        spill = Path(tempfile.mkdtemp()) / "ngrams.sqlite"  # a shared one would not be cold
        settings = row.settings.format(spill=spill)
        found.append({**asdict(row), **measure(session, row.method, settings, options)})
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        content = {
            **describe_run(session.target.describe()),
            "command": f"python benchmarks/chimera_costs.py {shlex.join(sys.argv[1:])}",
            "model": options.model,
            "budget": options.budget,
            "max_new_tokens": options.max_new_tokens,
            "prompts": len(PROMPTS),
            "seconds": round(perf_counter() - began, 1),
            "rows": found,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
