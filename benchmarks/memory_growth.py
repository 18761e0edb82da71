"""Check whether a process grows with the number of prompts, method by method.

    python benchmarks/memory_growth.py --data DIR --json benchmarks/results/memory-smollm2-135m.json

Reports at each of --marks the memory of the process, live tensors and their bytes, and if the drafter has
them, phrases in the pool and lookups in the n-gram store. After 200 prompts the same ones come
again: what grows then grows with their number. Every method runs in a fresh process, so that
methods are comparable. Trees are fixed, since a planner could switch drafts off, and then nothing
would grow. Of long prompts the last --longest-prompt tokens are read.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import PLACEMENT, opened, options, write
from paceline.bench.memory import live_tensors, resident_bytes
from paceline.drafters import make_drafter
from paceline.loop import Generation, decode
from paceline.prompts import PromptRecord, read_prompts
from paceline.stopping import Stopping

TASKS = ("humaneval", "gsm8k", "cnndm", "wmt16_deen")
METHODS = ("plain", "ouroboros:length=4,budget=128", "speculative:length=4", "chimera:cache=1024")
BUDGET, DIFFERENT = 64, 200


def prompts_of(data: Path, count: int) -> list[PromptRecord]:
    """The first prompts of several tasks in turns, again and again."""
    piles = [read_prompts(data / f"{task}.jsonl", DIFFERENT // len(TASKS)) for task in TASKS]
    return list(islice(cycle(record for row in zip(*piles) for record in row), count))


def watch(given: Namespace, method: str) -> dict[str, Any]:
    """Run one method on all prompts."""
    session, found = opened(given), []
    drafter = make_drafter(method, session.host.fresh())
    for place, record in enumerate(prompts_of(given.data, max(given.marks)), start=1):
        ids = session.encode(record.turns[0])[-given.longest_prompt :]
        generation = Generation(ids, drafter, Stopping(given.max_new_tokens))
        for _ in decode(session.target, [generation], BUDGET):
            pass
        if place in given.marks:
            tensors, lookups = live_tensors(), getattr(drafter, "lookups", None)
            point = {
                "prompts": place,
                "resident_bytes": resident_bytes(),
                "tensors": tensors.number,
                "tensor_bytes": tensors.memory,
                "phrases": len(getattr(drafter, "pool", ())),
                "lookups": None if lookups is None else dict(vars(lookups)),
            }
            found.append(point)
            print(method, point, file=sys.stderr, flush=True)
    return {"method": method, "points": found}


def main() -> None:
    given = options(
        __doc__, data=Path, json=Path, **PLACEMENT, longest_prompt=256, max_new_tokens=32,
        marks="10,100,200,400", methods=[*METHODS],
    )  # fmt: skip
    given.marks = [*map(int, given.marks.split(","))]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        watched = list(fresh.map(partial(watch, given), given.methods))
    write(given.json, {"model": given.model, "marks": given.marks, "methods": watched})


if __name__ == "__main__":
    main()
