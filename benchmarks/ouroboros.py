"""Ouroboros part by part, over many texts with one pool (Zhao et al. 2024, tables 4, 12 and 16).

    python benchmarks/ouroboros.py --data DIR --json benchmarks/results/ouroboros/parts.json

Every contender keeps its drafter, and so its phrases, from text to text; all go through the texts
in turns, so that each meets every text in the same state of the machine. Afterwards the whole of
Ouroboros meets the same texts in other orders. Passes of the draft model are counted apart.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import paceline
from paceline.drafters import make_drafter
from paceline.loop import Generation, decode
from paceline.machine import describe_run
from paceline.prompts import PromptRecord, read_prompts
from paceline.protocols import Drafter
from paceline.records import Stats
from paceline.sampling import Sampler
from paceline.session import Session
from paceline.stopping import Stopping

TASKS = "humaneval,mbpp,gsm8k,cnndm,wmt16_deen"
PARTS = {
    "plain": "plain",
    "lookahead": "lookahead",
    "speculative": "speculative:branches=0",
    "+ phrases for drafting": "ouroboros:branches=0,lengthen=0,verification=none,history=false",
    "+ lengthening": "ouroboros:branches=0,verification=none,history=false",
    "+ phrases from verification": "ouroboros:branches=0,history=false",
    "+ history": "ouroboros:branches=0",
}
"""The rows of table 4; each adds a part to the one before it."""


@dataclass
class Contender:
    """A method with what it has done so far."""

    name: str
    method: str
    session: Session
    seconds: float = 0.0
    stats: Stats = field(default_factory=Stats)
    by_task: dict[str, Stats] = field(default_factory=dict)
    task_seconds: dict[str, float] = field(default_factory=dict)
    drafter: Drafter = field(init=False)

    def __post_init__(self) -> None:
        self.drafter = make_drafter(self.method, self.session.host)
        self.planner = self.session.new_planner()

    def play(
        self, record: PromptRecord, ids: Sequence[int], options: argparse.Namespace
    ) -> list[int]:
        """Write one text, prompt read anew, and count it."""
        target = self.session.target
        target.sync([ids[:1]])
        sampler = Sampler(seed=options.seed, temperature=options.temperature)
        stopping = Stopping(options.max_new_tokens, self.session.eos_ids)
        generation = Generation(ids, self.drafter, stopping, sampler)
        stats, began = Stats(), perf_counter()
        for done in decode(target, [generation], self.planner):
            stats.add(done)
        seconds = perf_counter() - began
        self.seconds += seconds
        self.stats.merge(stats)
        self.by_task.setdefault(record.task, Stats()).merge(stats)
        self.task_seconds[record.task] = self.task_seconds.get(record.task, 0.0) + seconds
        return generation.output

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "method": self.method,
            **_figures(self.stats, self.seconds),
            "draft_passes": getattr(self.drafter, "passes", 0),
            "phrases": len(getattr(self.drafter, "pool", ())),
            "tasks": {
                task: _figures(stats, self.task_seconds[task])
                for task, stats in self.by_task.items()
            },
        }


def _figures(stats: Stats, seconds: float) -> dict[str, Any]:
    return {
        "tokens": stats.tokens,
        "passes": stats.rounds,
        "tokens_per_pass": round(stats.mean_acceptance_length, 4),
        "seconds": round(seconds, 3),
        "draft_seconds": round(stats.draft_seconds, 3),
        "target_seconds": round(stats.target_seconds + stats.prefill_seconds, 3),
        "tokens_per_second": round(stats.tokens / seconds, 3),
    }


def texts_of(options: argparse.Namespace) -> list[PromptRecord]:
    """The first prompts of every task, task by task."""
    found = []
    for task in options.tasks.split(","):
        records = list(read_prompts(options.data / f"{task}.jsonl"))[: options.limit]
        found += records
    return found


def orders(texts: Sequence[PromptRecord], seed: int) -> dict[str, list[PromptRecord]]:
    """Task by task; one of each task in turns; at random."""
    tasks = list(dict.fromkeys(record.task for record in texts))
    piles = [[record for record in texts if record.task == task] for task in tasks]
    longest = max(map(len, piles))
    mixed = [pile[place] for place in range(longest) for pile in piles if place < len(pile)]
    shuffled = list(texts)
    random.Random(seed).shuffle(shuffled)
    return {"consecutive": list(texts), "interleaved": mixed, "shuffled": shuffled}


def compare(
    session: Session,
    methods: dict[str, str],
    texts: Sequence[PromptRecord],
    options: argparse.Namespace,
) -> list[Contender]:
    """All contenders on all texts, in turns; raises RuntimeError where they write other texts."""
    contenders = [Contender(name, method, session) for name, method in methods.items()]
    for place, record in enumerate(texts):
        prompt = record.turns[0]
        ids = session.encode(prompt if record.raw else [{"role": "user", "content": prompt}])
        ids = ids[-options.longest_prompt :]
        turn = place % len(contenders)
        outputs = {
            one.name: one.play(record, ids, options)
            for one in [*contenders[turn:], *contenders[:turn]]
        }
        different = [name for name, output in outputs.items() if output != outputs["plain"]]
        print(f"{place + 1}/{len(texts)} {record.id}", *different, file=sys.stderr, flush=True)
    return contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", default=TASKS, help="names of files, by commas")
    parser.add_argument("--limit", type=int, default=4, help="prompts per task")
    parser.add_argument("--longest-prompt", type=int, default=512, help="tokens; the last ones")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--other-orders", action="store_true", help="table 16 as well")
    options = parser.parse_args()
    session = paceline.load(options.model, method="plain")
    texts = texts_of(options)
    found = orders(texts, options.seed)
    report: dict[str, Any] = {
        "command": f"python benchmarks/ouroboros.py {shlex.join(sys.argv[1:])}",
        **describe_run(),
        "parts": [one.as_json() for one in compare(session, PARTS, found["consecutive"], options)],
        "orders": {},
    }
    if options.other_orders:
        whole = {"plain": "plain", "ouroboros": PARTS["+ history"]}
        for name, order in found.items():
            report["orders"][name] = [
                one.as_json() for one in compare(session, whole, order, options)
            ]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
