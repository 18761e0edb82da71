"""Measure open batches: what writing many texts together gains, and what it costs the others.

    python benchmarks/open_batch.py throughput --data DIR --json benchmarks/results/open-batch/throughput.json

throughput  tokens per second of texts of mixed tasks, 1, 2, 4, … at a time: whenever one ends, the
            next joins
joining     the time between tokens of seven texts while the long prompt of an eighth is read

One session serves a whole study; compared settings take turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import paceline
from paceline.bench.comparison import in_turns
from paceline.drafters import make_drafter
from paceline.loop import Batch, Generation
from paceline.planning.planner import TreePlanner
from paceline.prompts import read_prompts
from paceline.records import Round
from paceline.session import Session
from paceline.stats import Stats
from paceline.stopping import Stopping
from tables import write

TASKS = (
    "mt_bench", "gsm8k", "humaneval", "mbpp", "wmt16_deen", "editeval", "jfleg", "vicuna_bench",
    "math500", "eagle_alpaca", "asset", "humanevalfix", "mtbench101", "xsum", "cnndm", "canitedit",
)  # fmt: skip
AT_ONCE = (1, 2, 4, 8, 16)
METHODS = ("plain", "anpd")
LONGEST_PROMPT = 400


def mixed_prompts(
    session: Session, options: argparse.Namespace, count: int, longest: int
) -> list[list[int]]:
    """Prompts of all tasks in turns, chat template included; longer ones are left out."""
    piles = [
        [ids for record in read_prompts(options.data / f"{task}.jsonl")
         if len(ids := session.encode([{"role": "user", "content": record.turns[0]}])) <= longest]
        for task in options.tasks.split(",")
    ]  # fmt: skip
    found = [
        pile[place] for place in range(max(map(len, piles))) for pile in piles if place < len(pile)
    ]
    return found[:count]


def throughput(session: Session, options: argparse.Namespace) -> dict[str, Any]:
    """Write the same texts at every batch size, in turns."""
    prompts = mixed_prompts(session, options, options.texts, LONGEST_PROMPT)
    planners = {
        (method, count): TreePlanner(session.host.curve) for method in METHODS for count in AT_ONCE
    }
    runs: dict[tuple[str, int], list[dict[str, float]]] = {name: [] for name in planners}
    texts: dict[int, list[int]] = {}
    different = 0
    for repeat in range(options.repeats):
        for method, count in in_turns([*runs], repeat):
            session.target.forget()
            began, stats = perf_counter(), Stats()
            generations = [
                Generation(ids, make_drafter(method), Stopping(options.max_new_tokens))
                for ids in prompts
            ]
            for round in _one_after_the_other(session, generations, planners[method, count], count):
                stats.add(round)
            seconds = perf_counter() - began
            outputs = [generation.output for generation in generations]
            for place, output in enumerate(outputs):
                different += texts.setdefault(place, output) != output
            after = stats.draft_seconds + stats.target_seconds + stats.commit_seconds
            runs[method, count].append(
                {
                    "tokens_per_second": stats.tokens / seconds,
                    "after_the_prompts": (stats.tokens - len(prompts)) / after,
                    "tokens_per_round": stats.mean_acceptance_length,
                }
            )
            note(f"{method} {count}: {runs[method, count][-1]}")
    table = [
        {
            "method": method,
            "at_once": count,
            **{key: median(run[key] for run in found) for key in found[0]},
        }
        for (method, count), found in runs.items()
    ]
    for row in table:
        alone = next(each for each in table if each["method"] == row["method"])
        for key in ("tokens_per_second", "after_the_prompts"):
            row[f"{key}_over_one"] = row[key] / alone[key]
    return {"table": table, "prompt_tokens": [*map(len, prompts)], "different_texts": different}


def _one_after_the_other(
    session: Session, generations: Sequence[Generation], planner: TreePlanner, at_once: int
) -> Iterator[Round]:
    """The rounds of all texts, `at_once` of them at a time while there are enough."""
    batch, waiting = Batch(session.target, planner), [*reversed(generations)]
    while waiting or batch:
        while waiting and len(batch) < at_once:
            batch.add(waiting.pop())
        yield from batch.step()
    for generation in generations:
        if generation.error is not None:
            raise generation.error


def joining(session: Session, options: argparse.Namespace) -> dict[str, Any]:
    """Decode seven texts while a long prompt joins them."""
    prompts = mixed_prompts(session, options, 7, 200)
    long = [token for ids in mixed_prompts(session, options, 60, LONGEST_PROMPT) for token in ids]
    found = []
    for method in METHODS:
        planner = TreePlanner(session.host.curve)
        for _ in range(options.repeats):
            found.append(
                {"method": method, **_join(session, method, planner, prompts, long[:1500])}
            )
            note(str(found[-1]))
    return {"runs": found}


def _join(
    session: Session,
    method: str,
    planner: TreePlanner,
    prompts: Sequence[list[int]],
    long: list[int],
) -> dict[str, float]:
    session.target.forget()
    batch = Batch(session.target, planner)
    for ids in prompts:
        batch.add(Generation(ids, make_drafter(method), Stopping(100_000)))

    def steps(until: Callable[[], bool]) -> Iterator[float]:
        while not until():
            began = perf_counter()
            batch.step()
            yield perf_counter() - began

    for _ in range(24):  # read the prompts, learn the costs
        batch.step()
    counter = iter(range(90))
    usual = [*steps(lambda: next(counter, None) is None)]
    joined, newcomer = perf_counter(), Generation(long, make_drafter(method), Stopping(4))
    batch.add(newcomer)
    during = [*steps(lambda: bool(newcomer.output))]
    first_token = perf_counter() - joined
    # Trees grow with a text, so usual times are taken before and after.
    counter = iter(range(90))
    usual += steps(lambda: next(counter, None) is None)
    batch.close()
    return {
        "median_between_tokens": median(usual),
        "worst_while_read": max(during),
        "worst_over_median": max(during) / median(usual),
        "p98_over_median": sorted(during)[int(0.98 * len(during))] / median(usual),
        "worst_of_usual_over_median": max(usual) / median(usual),
        "median_while_read": median(during),
        "passes": len(during),
        "seconds_to_first_token": first_token,
    }


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


STUDIES = {each.__name__: each for each in (throughput, joining)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS), help="names of files, by commas")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--texts", type=int, default=32, help="of the study throughput")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    session = paceline.load(
        options.model,
        method="anpd",
        weights=options.weights,
        device=options.device,
        dtype=options.dtype,
    )
    found = STUDIES[options.study](session, options)
    content = {"model": options.model, options.study: found}
    write(options.json, content, session.target.describe())


if __name__ == "__main__":
    main()
