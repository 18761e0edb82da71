"""Replay recorded answers with the real loop, drafters and planner, on a simulated clock.

    python benchmarks/replay.py --traces DIR --json planning.json
    python benchmarks/replay.py --traces DIR --methods anpd,auto,auto:-llma --json methods.json
    python benchmarks/replay.py --traces DIR --sources --json sources.json

The answers are followed by force, as in `paceline bench simulate`, but no model runs: a pass takes
the time that a measured cost curve gives for its width and context, and everything else takes none.
So the result is the same on every machine. It shows what plans and guesses are worth, not how fast
anything is: drafting time and noise are left out. No prompt is answered twice.

By default planned trees are compared with fixed budgets. With --sources each source of `auto` is
left out in turn; the datastore of "auto with answers" holds the other recorded answers to the same
prompts, each after the last tokens of its prompt, as if they had been given before.

The first --limit records of each of the --names are replayed, at most --tokens of an answer, cut by the
tokenizer of --model. --curve is a file of `paceline tune --json`, --system a text for system messages
that the recordings left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from common import options, run_script, write
from paceline.bench.traces import Recording, read_traces
from paceline.bench.trial import PLAIN, Request
from paceline.cli.bench.shared import split_methods
from paceline.cli.common import print_table, read_text
from paceline.datastore import PROMPT_TOKENS, Datastore
from paceline.drafters import Host, make_drafter
from paceline.errors import UsageError
from paceline.json_files import parse_json
from paceline.loop import FixedBudget, Generation, decode
from paceline.models import load_tokenizer
from paceline.options import Options
from paceline.planning.cost_curve import CostCurve
from paceline.planning.planner import MOST_NODES, TreePlanner
from paceline.protocols import TREES
from paceline.session import Session
from paceline.stats import Stats
from paceline.stopping import Stopping
from paceline.tables import Table
from paceline.targets.toy import ToyTarget, _Slot
from paceline.tree import Tree

CURVE = Path(__file__).parent / "results/bench/tune-smollm2-135m.json"
PAPERS = {"anpd": "anpd:n=5,k=7,branches=1", "llma": "llma:k=15", "pld": "pld"}
SOURCES = ("anpd", "suffix", "llma", "rest")
_WHOLE = 1 << 20


class ReplayTarget(ToyTarget):
    """A target without a model: scores mean nothing, and the curve drives a clock.

    curve: milliseconds of a pass by width and context. now: seconds.
    """

    capabilities = frozenset({TREES})

    def __init__(self, curve: CostCurve) -> None:
        super().__init__(vocab_size=sys.maxsize)
        self.now = 0.0
        self._curve = curve

    def clock(self) -> float:
        """Seconds of all passes so far."""
        return self.now

    def pending(self, slot: int) -> int:
        """Prompts cost nothing here."""
        return 0

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        """Zeros [len(tree) + 1, 1]; draws from them are ignored."""
        rows = sum(1 + len(tree) for tree in trees.values())
        slots = [self._slots[slot] for slot in trees]
        longest = max(len(slot.cached) + len(slot.pending) for slot in slots)
        self.now += self._curve.cost(rows, longest) / 1e3
        return super().score(trees, prefill)

    def _score_one(self, slot: _Slot, tree: Tree) -> torch.Tensor:
        return torch.zeros(len(tree) + 1, 1)


@dataclass(frozen=True)
class Contender:
    """A method. budget: of every tree; None plans them, from what passes cost if it `knows_costs`.
    searches: whether it searches the datastore of answers."""

    method: str
    budget: int | None = None
    searches: bool = False
    knows_costs: bool = True


def plans() -> dict[str, Contender]:
    """Fixed budgets and planned trees."""
    found = {f"anpd, {budget}": Contender(PAPERS["anpd"], budget) for budget in (1, 3, 5, 7)}
    for method, papers in PAPERS.items():
        found[f"{method}, as proposed"] = Contender(papers, MOST_NODES)
        found[f"{method}, planned"] = Contender(method)
    found["anpd as in its paper, planned"] = Contender(PAPERS["anpd"])
    found["anpd, planned without a curve"] = Contender("anpd", knows_costs=False)
    return found


def sources() -> dict[str, Contender]:
    """`auto` with all model-free sources, with answers, and without each source."""
    every = "+".join(SOURCES)
    own = every.removesuffix("+rest")  # which needs a datastore
    forgetful = own.replace("suffix", "suffix:persist=false")
    found = {
        "anpd": Contender("anpd"),
        "auto, nothing kept": Contender(f"auto:sources={forgetful}"),
        "auto": Contender(f"auto:sources={own}"),
        "auto with answers": Contender(f"auto:sources={every}", searches=True),
    }
    less = {name: f"auto:sources={every},without={name}" for name in SOURCES}
    return found | {f"without {name}": Contender(less[name], searches=True) for name in less}


def split(
    written: Sequence[Recording], known: Sequence[Recording], session: Session, tokens: int
) -> tuple[dict[str, list[Request]], dict[str, list[list[int]]]]:
    """File -> requests of `written`, no prompt twice; and file -> all other answers in `known` to
    these prompts, each after the last tokens of its prompt."""
    texts: dict[str, list[Request]] = {one.suite: [] for one in written}
    others: dict[str, list[list[int]]] = {one.suite: [] for one in written}
    taken, seen = set[tuple[str, str, int]](), set[tuple[int, ...]]()
    for one in written:
        for place, request in _requests(one, session, tokens):
            if tuple(request.ids) not in seen:
                seen.add(tuple(request.ids))
                taken.add((one.suite, one.record.id, place))
                texts[one.suite].append(request)
    prompts = {(one.suite, one.record.prompt) for one in written}
    for one in known:
        if (one.suite, one.record.prompt) in prompts:
            others[one.suite] += [
                [*request.ids[-PROMPT_TOKENS:], *request.recorded]
                for place, request in _requests(one, session, _WHOLE)
                if (one.suite, one.record.id, place) not in taken
            ]
    return {file: requests for file, requests in texts.items() if requests}, others


def _requests(recording: Recording, session: Session, tokens: int) -> Iterator[tuple[int, Request]]:
    """The numbered answers of a recording, of at most `tokens` tokens."""
    return enumerate(recording.requests(session, Options(tokens), lambda _: None))


def replay(
    contender: Contender, requests: Sequence[Request], curve: CostCurve, known: Datastore
) -> tuple[float, Stats]:
    """Seconds of all passes, and what happened, while the texts of a file are written in order and
    what is learned is kept between them."""
    target, stats, budget = ReplayTarget(curve), Stats(), contender.budget
    planner = TreePlanner(curve if contender.knows_costs else None)
    sizing = planner if budget is None else FixedBudget(budget)
    host = Host(target, curve=curve, datastore=known if contender.searches else None)
    for request in requests:
        generation = Generation(
            request.ids,
            make_drafter(contender.method, host),
            Stopping(len(request.recorded)),
            request.sampler(),
            request.references,
        )
        for done in decode(target, [generation], sizing, target.clock):
            stats.add(done)
        if generation.output != list(request.recorded):
            raise RuntimeError(f"{contender.method} wrote another text")
    return target.now, stats


def result(found: Mapping[str, Mapping[str, tuple[float, Stats]]]) -> dict[str, Any]:
    """Contender -> file -> seconds and stats, as JSON values: speed-ups over plain decoding."""
    plain, results = found[PLAIN], {}
    for name, files in found.items():
        stats = Stats()
        for _, own in files.values():
            stats.merge(own)
        whole = sum(seconds for seconds, _ in plain.values())
        results[name] = {
            "speedup": round(whole / sum(seconds for seconds, _ in files.values()), 4),
            "tokens_per_pass": round(stats.mean_acceptance_length, 4),
            "nodes_per_pass": round(stats.drafted / stats.rounds, 4),
            "files": {name: round(plain[name][0] / own[0], 4) for name, own in files.items()},
            "sources": {
                source: {key: value for key, value in asdict(did).items() if key != "seconds"}
                for source, did in stats.sources.items()
            },
        }
    return results


def read_curve(path: Path) -> CostCurve:
    """The curve of a file of `paceline tune --json`. Raises UsageError for any other file."""
    text = read_text(path, "file")
    try:
        return CostCurve.from_records(parse_json(text)["curve"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no curve: name a file of 'paceline tune --json'") from error


def main() -> None:
    """Read the arguments, replay, print, write."""
    given = options(
        __doc__, traces=Path, json=Path, names=["all"], model="smollm2-135m", curve=CURVE, methods="",
        sources=False, limit=24, tokens=256, system=Path | None,
    )  # fmt: skip
    curve = read_curve(given.curve)
    system = read_text(given.system, "file") if given.system else None
    recordings = partial(read_traces, given.names, given.traces, system=system)
    session = Session(ReplayTarget(curve), load_tokenizer(given.model), PLAIN)
    known = recordings(limit=None) if given.sources else []
    texts, others = split(recordings(limit=given.limit), known, session, given.tokens)
    contenders = sources() if given.sources else plans()
    if given.methods:
        contenders = {method: Contender(method) for method in split_methods(given.methods)}
    contenders = {PLAIN: Contender(PLAIN, 0)} | contenders
    with TemporaryDirectory() as folder:
        store = Datastore(Path(folder), "any")
        store.build(answer for found in others.values() for answer in found)
        found = result(
            {name: {file: replay(each, asked, curve, store) for file, asked in texts.items()}
             for name, each in contenders.items()}
        )  # fmt: skip
    rows = [[file, *(f"{each['files'][file]:.2f}x" for each in found.values())] for file in texts]
    rows.append(["all, by time", *(f"{each['speedup']:.2f}x" for each in found.values())])
    print_table(Table("speed-up over plain decoding", ["file", *contenders], rows))
    report = {"curve": curve.to_records(), "contenders": found}
    report["texts"] = {file: len(asked) for file, asked in texts.items()}
    report["answers"] = {file: len(texts) for file, texts in others.items()}
    write(given.json, report)


if __name__ == "__main__":
    run_script(main)
