"""Memory of a process that writes many texts by one method, a fresh process each.

    python benchmarks/memory.py --data DIR --json benchmarks/results/memory-smollm2-135m.json

Two hundred prompts of four tasks, then the same again. Trees are fixed: a planner could switch off
drafts, and then nothing would grow. Run it twice: a first start takes more, as it prepares weights.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import paceline
from common import options, run_script, write
from paceline.bench.memory import held, peak_meter
from paceline.bench.trial import PLAIN
from paceline.drafters import check_method
from paceline.options import Options
from paceline.prompts import read_prompts

TASKS, DIFFERENT, MARKS = ("humaneval", "gsm8k", "cnndm", "wmt16_deen"), 200, (10, 100, 200, 400)
METHODS = [PLAIN, "ppd", "medusa", "chimera", "eagle", "speculative", "ouroboros", "auto"]


def watch(model: str, data: Path, method: str) -> dict[str, Any]:
    """The process's bytes after so many prompts, and their peak."""
    cpu, found = torch.device("cpu"), list[int | None]()
    peak = peak_meter(cpu)
    session = paceline.load(model, method, device="cpu", options=Options(32, budget=64))
    piles = [read_prompts(data / f"{task}.jsonl", DIFFERENT // len(TASKS)) for task in TASKS]
    for place, record in enumerate([*chain(*zip(*piles))] * 2, start=1):
        session.generate(session.encode(record.turns[0])[-256:])
        found += [held(cpu)] * (place in MARKS)
    return {"name": method, "bytes": found, "peak": peak()}


def main() -> None:
    chosen = options(__doc__, data=Path, json=Path, model="smollm2-135m", methods=METHODS)
    methods = dict.fromkeys([PLAIN, *chosen.methods])  # the first is what others are compared with
    for method in methods:
        check_method(method)  # before an hour of work
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        rows = list(fresh.map(watch, repeat(chosen.model), repeat(chosen.data), methods))
    for row in rows:
        row["of_plain"] = row["bytes"][0] / rows[0]["bytes"][0] - 1
    write(chosen.json, {"model": chosen.model, "marks": MARKS, "methods": rows})


if __name__ == "__main__":
    run_script(main)
