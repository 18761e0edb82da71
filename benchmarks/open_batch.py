"""Measure open batches: what writing many texts together gains.

    python benchmarks/open_batch.py throughput --data DIR --json benchmarks/results/open-batch/throughput.json

throughput  tokens per second of texts of mixed tasks, 1, 2, 4, … at a time: whenever one ends, the
            next joins; batch sizes take turns in one session
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import product, zip_longest
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from common import PLACEMENT, opened, options, write
from paceline.bench.comparison import in_turns
from paceline.drafters import make_drafter
from paceline.loop import Batch, Generation
from paceline.planning.planner import TreePlanner
from paceline.prompts import read_prompts
from paceline.records import Round
from paceline.session import Session
from paceline.stats import Stats
from paceline.stopping import Stopping

TASKS = (
    "mt_bench", "gsm8k", "humaneval", "mbpp", "wmt16_deen", "editeval", "jfleg", "vicuna_bench",
    "math500", "eagle_alpaca", "asset", "humanevalfix", "mtbench101", "xsum", "cnndm", "canitedit",
)  # fmt: skip
AT_ONCE, METHODS = (1, 2, 4, 8, 16), ("plain", "anpd")
LONGEST_PROMPT = 400


def mixed_prompts(session: Session, given: Namespace) -> list[list[int]]:
    """Prompts of all tasks in turns, chat template included; longer ones are left out."""
    piles = [
        [
            ids
            for record in read_prompts(given.data / f"{task}.jsonl")
            if len(ids := session.encode([{"role": "user", "content": record.turns[0]}]))
            <= LONGEST_PROMPT
        ]
        for task in given.tasks.split(",")
    ]
    return [ids for row in zip_longest(*piles) for ids in row if ids is not None][: given.texts]


def throughput(session: Session, given: Namespace) -> dict[str, Any]:
    """Write the same texts at every batch size, in turns."""
    prompts, every = mixed_prompts(session, given), list(product(METHODS, AT_ONCE))
    runs: dict[tuple[str, int], list[dict[str, float]]] = {run: [] for run in every}
    planners = {run: TreePlanner(session.host.curve) for run in every}
    first: list[list[int]] = []
    different = 0
    for repeat in range(given.repeats):
        for method, count in in_turns(every, repeat):
            texts = [
                Generation(ids, make_drafter(method), Stopping(given.max_new_tokens))
                for ids in prompts
            ]
            found = _timed(session, texts, planners[method, count], count)
            outputs = [text.output for text in texts]
            first = first or outputs
            different += sum(one != other for one, other in zip(first, outputs))
            runs[method, count].append(found)
            print(method, count, found, file=sys.stderr, flush=True)
    medians = {
        run: {key: median(one[key] for one in found) for key in found[0]}
        for run, found in runs.items()
    }
    table = []
    for (method, count), found in medians.items():
        over = {f"{key}_over_one": each / medians[method, 1][key] for key, each in found.items()}
        table.append({"method": method, "at_once": count, **found, **over})
    return {"table": table, "prompt_tokens": [*map(len, prompts)], "different_texts": different}


def _timed(
    session: Session, texts: Sequence[Generation], planner: TreePlanner, at_once: int
) -> dict[str, float]:
    session.target.forget()
    began, stats = perf_counter(), Stats()
    for round in _one_after_the_other(session, texts, planner, at_once):
        stats.add(round)
    after = stats.draft_seconds + stats.target_seconds + stats.commit_seconds
    return {
        "tokens_per_second": stats.tokens / (perf_counter() - began),
        "after_the_prompts": (stats.tokens - len(texts)) / after,
        "tokens_per_round": stats.mean_acceptance_length,
    }


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


def main() -> None:
    given = options(
        __doc__, "throughput", data=Path, json=Path, **PLACEMENT, tasks=",".join(TASKS), texts=32,
        max_new_tokens=64, repeats=2,
    )  # fmt: skip
    session = opened(given, "anpd")
    content = {"model": given.model, "throughput": throughput(session, given)}
    write(given.json, content, session.target.describe())


if __name__ == "__main__":
    main()
