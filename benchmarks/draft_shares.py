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

import paceline
from paceline.cli.bench.shared import split_methods
from paceline.drafters import make_drafter
from paceline.errors import ModelError
from paceline.loop import Batch, FixedBudget, Generation
from paceline.records import Round
from paceline.session import Session
from paceline.stopping import Stopping
from tables import write

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
    return {name: method for name, method in every.items() if is_there(method, session)}


def prompts(session: Session, options: argparse.Namespace) -> list[list[int]]:
    """The questions, or the beginning of a text."""
    if options.text is None:
        return [session.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    ids = session.encode(options.text.read_text(encoding="utf-8"))[: options.context]
    if len(ids) < options.context:
        raise SystemExit(f"{options.text} has {len(ids)} tokens: name a longer text")
    return [ids]


def is_there(method: str, session: Session) -> bool:
    try:
        make_drafter(method, session.host)
    except ModelError as reason:
        print(reason, file=sys.stderr)
        return False
    return True


def play(
    session: Session,
    ids: list[int],
    options: argparse.Namespace,
    chosen: dict[str, str],
    found: dict[str, list[Round]],
) -> None:
    """Run all methods in turn on one prompt; rounds that read the prompt are left out."""
    batches = {}
    for name, method in chosen.items():
        drafter = make_drafter(method, session.host)
        batches[name] = Batch(session.target, FixedBudget(options.budget))
        batches[name].add(Generation(ids, drafter, Stopping(options.rounds * 8)))
    for _ in range(options.rounds):
        for name, batch in batches.items():
            found[name] += [done for done in batch.step() if not (done.first or done.prefill)]
    for batch in batches.values():
        batch.close()


def milliseconds(name: str, rounds: list[Round], length: int) -> list[float]:
    """The time that counts in each round: of the pass, the draft, or one drafted token."""
    if name == "plain":
        return [1e3 * done.seconds.target for done in rounds]
    each = length if name == "draft token" else 1
    return [1e3 * done.seconds.draft / each for done in rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--rounds", type=int, default=60, help="per prompt and method")
    parser.add_argument("--length", type=int, default=4, help="tokens of the draft model's drafts")
    parser.add_argument("--budget", type=int, default=16, help="nodes of a tree at most")
    parser.add_argument("--methods", default="", help="others, separated by commas")
    parser.add_argument("--text", type=Path, help="a file to go on from, instead of questions")
    parser.add_argument("--context", type=int, default=1000, help="tokens of it")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()
    session = paceline.load(options.model, "plain", device=options.device, dtype=options.dtype)
    chosen = methods(session, options)
    found: dict[str, list[Round]] = {name: [] for name in chosen}
    for ids in prompts(session, options):
        play(session, ids, options, chosen, found)
    rows = {}
    for name, rounds in found.items():
        times = milliseconds(name, rounds, options.length)
        rows[name] = {
            "rounds": len(rounds),
            "ms": round(median(times), 4),
            "quartile_ms": round(quantiles(times, n=4)[0], 4),
            "tokens_per_pass": round(sum(len(r.path.tokens) for r in rounds) / len(rounds), 3),
        }
    print("                        ms   of a pass   lower quartile   of a pass   tokens per pass")
    for name, row in rows.items():
        row["share"] = round(row["ms"] / rows["plain"]["ms"], 4)
        row["quartile_share"] = round(row["quartile_ms"] / rows["plain"]["quartile_ms"], 4)
        print(
            f"{name:20} {row['ms']:7.3f} {row['share']:10.1%} {row['quartile_ms']:16.3f}"
            f" {row['quartile_share']:11.1%} {row['tokens_per_pass']:17.2f}"
        )
    write(options.json, {"rows": rows}, session.target.describe())


if __name__ == "__main__":
    main()
