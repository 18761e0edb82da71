"""Check whether a process grows with the number of prompts, method by method.

    python benchmarks/memory_growth.py --data DIR --json benchmarks/results/memory-smollm2-135m.json

Reports at each mark the memory of the process, live tensors and their bytes, and if the drafter has
them, phrases in the pool and lookups in the n-gram store. After 200 prompts the same ones come
again: what grows then grows with their number. Every method runs in a fresh process, so that
methods are comparable. Trees are fixed, since a planner could switch drafts off, and then nothing
would grow.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from paceline.bench.memory import live_tensors, resident_bytes
from paceline.drafters import make_drafter
from paceline.loop import Generation, decode
from paceline.prompts import PromptRecord, read_prompts
from paceline.stopping import Stopping
from tables import add_placement, opened, write

TASKS = ("humaneval", "gsm8k", "cnndm", "wmt16_deen")
METHODS = ("plain", "ouroboros:length=4,budget=128", "speculative:length=4", "chimera:cache=1024")
BUDGET, DIFFERENT = 64, 200


def prompts_of(data: Path, count: int) -> list[PromptRecord]:
    """The first prompts of several tasks in turns, again and again."""
    piles = [read_prompts(data / f"{task}.jsonl", DIFFERENT // len(TASKS)) for task in TASKS]
    return list(islice(cycle(record for row in zip(*piles) for record in row), count))


def watch(options: argparse.Namespace, method: str) -> dict[str, Any]:
    """Run one method on all prompts."""
    session, found = opened(options), []
    drafter = make_drafter(method, session.host.fresh())
    for place, record in enumerate(prompts_of(options.data, max(options.marks)), start=1):
        ids = session.encode(record.turns[0])[-options.longest_prompt :]
        generation = Generation(ids, drafter, Stopping(options.max_new_tokens))
        for _ in decode(session.target, [generation], BUDGET):
            pass
        if place in options.marks:
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    add_placement(parser)
    parser.add_argument("--longest-prompt", type=int, default=256, help="tokens; the last ones")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--marks", default="10,100,200,400", help="of prompts, by commas")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    options.marks = [*map(int, options.marks.split(","))]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        watched = list(fresh.map(partial(watch, options), options.methods))
    write(options.json, {"model": options.model, "marks": options.marks, "methods": watched})


if __name__ == "__main__":
    main()
