"""What drafts cost, as shares of a pass of the target over one row.

    python benchmarks/draft_shares.py --json draft-shares.json

Texts by plain decoding, with the draft model, Medusa, Chimera and EAGLE go on in turn, round by
round, on one target: between two drafts the target has been read, as it always is. The draft model
says --length tokens a round; heads grow trees of --budget nodes. What there is not for the model is
left out; --eagle names a folder with other parts. A draft's time is what the loop spends
outside of the target: proposing and observing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from statistics import median, quantiles

import paceline
from paceline.drafters import make_drafter
from paceline.errors import ModelError
from paceline.loop import Batch, FixedBudget, Generation
from paceline.machine import describe_run
from paceline.records import Round
from paceline.session import Session
from paceline.stopping import Stopping

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that merges two sorted lists.",
    "Summarize the plot of Hamlet in three sentences.",
)


def methods(session: Session, options: argparse.Namespace) -> dict[str, str]:
    """What is reported -> the method, as far as there are such for the model."""
    every = {
        "plain": "plain",
        "draft token": f"speculative:length={options.length}",
        "medusa": "medusa",
        "chimera": "chimera",
        "chimera, all levels": "chimera:least=0",
    }
    if options.eagle:
        every["eagle"] = f"eagle:parts={options.eagle}"
        every["eagle, 4 levels"] = f"eagle:parts={options.eagle},depth=4,least=0"
    return {name: method for name, method in every.items() if is_there(method, session)}


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
    """All methods in turn on one prompt; rounds that read are left out."""
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
    """Of each round what counts: the pass, the draft, or a token of it."""
    if name == "plain":
        return [1e3 * done.seconds.target for done in rounds]
    each = length if name == "draft token" else 1
    return [1e3 * done.seconds.draft / each for done in rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=60, help="per prompt and method")
    parser.add_argument("--length", type=int, default=4, help="tokens of the draft model's drafts")
    parser.add_argument("--budget", type=int, default=16, help="nodes of a tree at most")
    parser.add_argument("--eagle", default="", help="a folder with EAGLE parts")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()
    session = paceline.load(options.model, method="plain")
    session.settle()
    chosen = methods(session, options)
    found: dict[str, list[Round]] = {name: [] for name in chosen}
    for prompt in PROMPTS:
        ids = session.encode([{"role": "user", "content": prompt}])
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
    if options.json:
        content = {
            **describe_run(session.target.describe()),
            "command": f"python benchmarks/draft_shares.py {shlex.join(sys.argv[1:])}",
            "rows": rows,
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
