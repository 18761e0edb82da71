"""Compare planned trees with fixed budgets, on recorded texts and a simulated clock.

    python benchmarks/planning.py --traces DIR --model smollm2-135m \
        --curve benchmarks/results/bench/tune-smollm2-135m.json --json planning.json

The real loop, drafters and planner follow recorded answers by force (see `paceline bench
simulate`), but no model runs: a pass takes the time that a measured cost curve gives for its width
and context, and everything else takes none. So the result is the same on every machine. It shows
what a plan is worth, not how fast anything is: it leaves out drafting time and clock noise.

Speed-ups are those after the prompt: tokens per second over those of plain decoding.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from paceline import models
from paceline.bench.simulate import Forced, ForcedRequest, Recording
from paceline.bench.traces import read_traces
from paceline.cli.bench.shared import split_methods
from paceline.datastore import Datastore
from paceline.drafters import Host, make_drafter
from paceline.loop import Generation, decode
from paceline.options import Options
from paceline.planning.cost_curve import CostCurve
from paceline.planning.planner import MOST_NODES, TreePlanner
from paceline.protocols import TREES, Planner, Target
from paceline.records import Path as Accepted
from paceline.records import TargetInfo
from paceline.session import Session
from paceline.stats import Stats
from paceline.stopping import Stopping
from paceline.tree import Tree
from tables import shown_command

BUDGETS = (1, 3, 5, 7)
PAPERS = {"anpd": "anpd:n=5,k=7,branches=1", "llma": "llma:k=15", "pld": "pld"}


class ReplayTarget(Target):
    """A target without a model: scores mean nothing, and the curve drives a clock.

    curve: milliseconds of a pass by width and context. now: seconds.
    """

    vocab_size = sys.maxsize
    max_context = None
    capabilities = frozenset({TREES})

    def __init__(self, curve: CostCurve) -> None:
        self.now = 0.0
        self._curve = curve
        self._held: dict[int, int] = {}
        self._opened = 0

    def clock(self) -> float:
        """Seconds of all passes so far."""
        return self.now

    def open(self, context: Sequence[int]) -> int:
        """See `Target.open`; keeps only lengths."""
        self._opened += 1
        self._held[self._opened] = len(context)
        return self._opened

    def close(self, slot: int) -> None:
        """See `Target.close`."""
        del self._held[slot]

    def forget(self) -> None:
        """Nothing is kept of closed texts."""

    def pending(self, slot: int) -> int:
        """Prompts cost nothing here."""
        return 0

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        """Zeros [len(tree) + 1, 1]; draws from them are ignored."""
        rows = sum(1 + len(tree) for tree in trees.values())
        self.now += self._curve.cost(rows, max(self._held[slot] for slot in trees)) / 1e3
        return {slot: torch.zeros(len(tree) + 1, 1) for slot, tree in trees.items()}

    def commit(self, paths: Mapping[int, Accepted]) -> None:
        """See `Target.commit`."""
        for slot, path in paths.items():
            self._held[slot] += len(path.tokens)

    def describe(self) -> TargetInfo:
        """See `Target.describe`."""
        return TargetInfo(type(self).__name__)


@dataclass(frozen=True)
class Contender:
    """A method, and what sizes its trees over all texts of a file."""

    name: str
    method: str
    sizing: Callable[[CostCurve], int | Planner]


@dataclass(frozen=True)
class Outcome:
    """A contender's result on one file. seconds: by the clock, after the prompts."""

    seconds: float
    stats: Stats


def contenders(methods: Sequence[str] = ()) -> Iterator[Contender]:
    """Plain decoding, then fixed budgets and planned trees, or planned trees of `methods`."""
    yield Contender("plain", "plain", lambda curve: 0)
    for method in methods:
        yield Contender(method, method, TreePlanner)
    if methods:
        return
    for budget in BUDGETS:
        yield Contender(f"anpd, {budget}", PAPERS["anpd"], lambda curve, budget=budget: budget)
    for method, papers in PAPERS.items():
        yield Contender(f"{method}, as proposed", papers, lambda curve: MOST_NODES)
        yield Contender(f"{method}, planned", method, TreePlanner)
    yield Contender("anpd as in its paper, planned", PAPERS["anpd"], TreePlanner)
    yield Contender("anpd, planned without a curve", "anpd", lambda curve: TreePlanner())


def texts_of(
    recordings: Sequence[Recording], session: Session, tokens: int, once: bool = False
) -> dict[str, list[ForcedRequest]]:
    """File -> its recorded answers as requests. once: keep only the first of equal prompts."""
    found: dict[str, list[ForcedRequest]] = {}
    seen: set[tuple[int, ...]] = set()
    for recording in recordings:
        for request in recording.requests(session, Options(max_new_tokens=tokens), lambda _: None):
            if once and tuple(request.ids) in seen:
                continue
            seen.add(tuple(request.ids))
            if isinstance(request, ForcedRequest) and request.recorded:
                found.setdefault(recording.suite, []).append(request)
    return found


def replay(
    contender: Contender,
    requests: Sequence[ForcedRequest],
    curve: CostCurve,
    datastore: Datastore | None = None,
) -> Outcome:
    """Replay all texts of a file in order, keeping what is learned between them."""
    target, sizing, stats = ReplayTarget(curve), contender.sizing(curve), Stats()
    # Keeps what drafters learn from text to text.
    host = Host(target, curve=curve, datastore=datastore)
    for request in requests:
        generation = Generation(
            request.ids,
            make_drafter(contender.method, host),
            Stopping(len(request.recorded)),
            Forced(prompt_tokens=len(request.ids), recorded=request.recorded),
            request.references,
        )
        for done in decode(target, [generation], sizing, target.clock):
            stats.add(done)
        if generation.output != list(request.recorded):
            raise RuntimeError(f"{contender.name} wrote another text")
    return Outcome(target.now, stats)


def evaluate(
    texts: dict[str, list[ForcedRequest]], curve: CostCurve, baselines: Sequence[Contender]
) -> dict[str, dict[str, dict[str, float]]]:
    """File -> contender -> speed-up over plain decoding, tokens and nodes per pass, and seconds of
    all passes."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for suite, requests in texts.items():
        plain = 0.0
        for contender in baselines:
            outcome = replay(contender, requests, curve)
            plain = plain or outcome.seconds
            found.setdefault(suite, {})[contender.name] = {
                "speedup": round(plain / outcome.seconds, 4),
                "tokens_per_pass": round(outcome.stats.mean_acceptance_length, 4),
                "nodes_per_pass": round(outcome.stats.drafted / outcome.stats.rounds, 4),
                "seconds": round(outcome.seconds, 4),
            }
    return found


def read_curve(path: Path) -> CostCurve:
    """The curve in a file that `paceline tune` wrote with --json or stored itself."""
    return CostCurve.from_records(json.loads(path.read_text(encoding="utf-8"))["curve"])


def print_report(found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print one row per file, one column per contender."""
    names = list(next(iter(found.values())))
    print("| file |", " | ".join(names), "|")
    print("|---|" + "---|" * len(names))
    for suite, by_name in found.items():
        print(f"| {suite} |", " | ".join(f"{by_name[n]['speedup']:.2f}x" for n in names), "|")
    spent = {name: sum(by_name[name]["seconds"] for by_name in found.values()) for name in names}
    whole = [f"{spent[names[0]] / spent[name]:.3f}x" for name in names]
    print("| all, by time |", " | ".join(whole), "|")


def main() -> None:
    """Read the arguments, replay, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of trace files")
    parser.add_argument("--names", nargs="*", default=["all"], help="files of it; default: all")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer cuts the texts")
    parser.add_argument("--curve", type=Path, required=True, help="file of `paceline tune --json`")
    parser.add_argument(
        "--methods", default="", help="methods to plan, separated by commas; default: the table's"
    )
    parser.add_argument("--limit", type=int, default=24, help="records of each file")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument(
        "--once", action="store_true", help="no prompt twice, for drafters that keep answers"
    )
    parser.add_argument("--system", type=Path, help="text for system messages left out")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    curve = read_curve(arguments.curve)
    system = arguments.system.read_text(encoding="utf-8") if arguments.system else None
    recordings = read_traces(arguments.names, arguments.traces, arguments.limit, 0, system)
    tokenizer: Any = AutoTokenizer.from_pretrained(models.pull(arguments.model))
    session = Session(ReplayTarget(curve), tokenizer, "plain")
    texts = texts_of(recordings, session, arguments.tokens, arguments.once)
    methods = split_methods(arguments.methods) if arguments.methods else []
    found = evaluate(texts, curve, list(contenders(methods)))
    print_report(found)
    if arguments.json:
        result = {
            "command": shown_command(),
            "texts": {suite: len(requests) for suite, requests in texts.items()},
            "tokens": {
                suite: sum(len(request.recorded) for request in requests)
                for suite, requests in texts.items()
            },
            "curve": curve.to_records(),
            "files": found,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
