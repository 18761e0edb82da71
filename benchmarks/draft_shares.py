"""Measure what drafts cost, as shares of a one-row target pass.

    python benchmarks/draft_shares.py --json draft-shares.json
    python benchmarks/draft_shares.py --methods anpd,rest:datastore=DIR --text FILE --context 8000

Plain decoding, the draft model, Medusa, Chimera and EAGLE take turns on one target, round by round,
so the target's weights are read between two drafts, as in real use. The draft model proposes
--length tokens a round; heads grow trees of --budget nodes. Methods that the model has no parts for
are left out; --methods measures others. A draft's time is what the loop spends outside the target:
proposing and observing. --rounds counts for each prompt and method; the prompts are questions, or
the first --context tokens of --text.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from common import PLACEMENT, opened, options, write
from paceline.cli.bench.shared import split_methods
from paceline.drafters import make_drafter
from paceline.errors import ModelError
from paceline.loop import Batch, FixedBudget, Generation
from paceline.records import Round
from paceline.session import Session
from paceline.stopping import Stopping

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that merges two sorted lists.",
    "Summarize the plot of Hamlet in three sentences.",
)


def methods(session: Session, given: Namespace) -> dict[str, str]:
    """Reported name -> method, for the methods that work with the model."""
    if given.methods:
        return {name: name for name in split_methods(f"plain,{given.methods}")}
    every = {
        "plain": "plain",
        "draft token": f"speculative:length={given.length}",
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


def prompts(session: Session, given: Namespace) -> list[list[int]]:
    """The questions, or the beginning of a text."""
    if given.text is None:
        return [session.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    ids = session.encode(given.text.read_text(encoding="utf-8"))[: given.context]
    if len(ids) < given.context:
        raise SystemExit(f"{given.text} has {len(ids)} tokens: name a longer text")
    return [ids]


def play(session: Session, given: Namespace) -> dict[str, list[Round]]:
    """Run all methods in turns on each prompt; rounds that read the prompt are left out."""
    chosen = methods(session, given)
    found: dict[str, list[Round]] = {name: [] for name in chosen}
    for ids in prompts(session, given):
        batches = {name: Batch(session.target, FixedBudget(given.budget)) for name in chosen}
        for name, method in chosen.items():
            drafter = make_drafter(method, session.host)
            batches[name].add(Generation(ids, drafter, Stopping(given.rounds * 8)))
        for _ in range(given.rounds):
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
    given = options(
        __doc__, **PLACEMENT, json=Path | None, methods="", text=Path | None, context=1000,
        rounds=60, length=4, budget=16,
    )  # fmt: skip
    session = opened(given)
    rows = {
        name: row_of(name, rounds, given.length) for name, rounds in play(session, given).items()
    }
    for name, row in rows.items():
        for kind in ("", "quartile_"):
            row[f"{kind}share"] = round(row[f"{kind}ms"] / rows["plain"][f"{kind}ms"], 4)
        print(f"{name:20}", row)
    write(given.json, {"rows": rows}, session.target.describe())


if __name__ == "__main__":
    main()
