"""Measure what drafts cost, as shares of a one-row target pass.

    python benchmarks/draft_shares.py --json draft-shares.json
    python benchmarks/draft_shares.py --methods anpd,rest:datastore=DIR --text FILE --context 8000

Plain decoding, the draft model, Medusa, Chimera and EAGLE take turns on one target, round by round,
so the target's weights are read between two drafts, as in real use. The draft model proposes
--length tokens a round; heads grow trees of --budget nodes. Methods that the model has no parts for
are left out; --methods measures others. A draft's time is what the loop spends outside the target:
proposing and observing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from paceline.cli.bench.shared import split_methods
from paceline.drafters import make_drafter
from paceline.errors import ModelError
from paceline.loop import Batch, FixedBudget, Generation
from paceline.records import Round
from paceline.session import Session
from paceline.stopping import Stopping
from tables import add_placement, opened, write

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that merges two sorted lists.",
    "Summarize the plot of Hamlet in three sentences.",
)


def methods(session: Session, options: argparse.Namespace) -> dict[str, str]:
    """Reported name -> method, for the methods that work with the model."""
    if options.methods:
        return {name: name for name in split_methods(f"plain,{options.methods}")}
    every = {
        "plain": "plain",
        "draft token": f"speculative:length={options.length}",
        "medusa": "medusa",
        "chimera": "chimera",
        "chimera, all levels": "chimera:depth=8,least=0",
        "eagle": "eagle",
        "eagle, 4 levels": "eagle:depth=4,least=0",
    }
    found = {}
    for name, method in every.items():
        try:
            make_drafter(method, session.host)
            found[name] = method
        except ModelError as reason:
            print(reason, file=sys.stderr)
    return found


def prompts(session: Session, options: argparse.Namespace) -> list[list[int]]:
    """The questions, or the beginning of a text."""
    if options.text is None:
        return [session.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    ids = session.encode(options.text.read_text(encoding="utf-8"))[: options.context]
    if len(ids) < options.context:
        raise SystemExit(f"{options.text} has {len(ids)} tokens: name a longer text")
    return [ids]


def play(session: Session, options: argparse.Namespace) -> dict[str, list[Round]]:
    """Run all methods in turns on each prompt; rounds that read the prompt are left out."""
    chosen = methods(session, options)
    found: dict[str, list[Round]] = {name: [] for name in chosen}
    for ids in prompts(session, options):
        batches = {name: Batch(session.target, FixedBudget(options.budget)) for name in chosen}
        for name, method in chosen.items():
            drafter = make_drafter(method, session.host)
            batches[name].add(Generation(ids, drafter, Stopping(options.rounds * 8)))
        for _ in range(options.rounds):
            for name, batch in batches.items():
                found[name] += [done for done in batch.step() if not (done.first or done.prefill)]
        for batch in batches.values():
            batch.close()
    return found


def row_of(name: str, rounds: list[Round], length: int) -> dict[str, Any]:
    """The time that counts: of the pass, the draft, or one drafted token."""
    part = "target" if name == "plain" else "draft"
    each = length if name == "draft token" else 1
    times = [1e3 * getattr(done.seconds, part) / each for done in rounds]
    return {
        "rounds": len(rounds),
        "ms": round(median(times), 4),
        "quartile_ms": round(quantiles(times, n=4)[0], 4),
        "tokens_per_pass": round(sum(len(r.path.tokens) for r in rounds) / len(rounds), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_placement(parser)
    parser.add_argument("--rounds", type=int, default=60, help="per prompt and method")
    parser.add_argument("--length", type=int, default=4, help="tokens of the draft model's drafts")
    parser.add_argument("--budget", type=int, default=16, help="nodes of a tree at most")
    parser.add_argument("--methods", default="", help="others, separated by commas")
    parser.add_argument("--text", type=Path, help="a file to go on from, instead of questions")
    parser.add_argument("--context", type=int, default=1000, help="tokens of it")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()
    session = opened(options)
    rows = {
        name: row_of(name, rounds, options.length)
        for name, rounds in play(session, options).items()
    }
    for name, row in rows.items():
        for kind in ("", "quartile_"):
            row[f"{kind}share"] = round(row[f"{kind}ms"] / rows["plain"][f"{kind}ms"], 4)
        print(f"{name:20}", row)
    write(options.json, {"rows": rows}, session.target.describe())


if __name__ == "__main__":
    main()
