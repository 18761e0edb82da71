"""What the sources of `auto` that look texts up cost in a round, as shares of a pass.

One source at a time, and all of them united by `auto`, go on behind contexts of several lengths;
`rest` looks into datastores of several sizes. Each is timed twice: round after round, and "cold",
where before every round as much memory is read as a pass reads, so that code and tables of the
drafter have left the caches. The truth lies between: sources of a round warm the interpreter for
each other, as "auto of these" shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from markov_texts import MarkovTexts
from paceline.datastore import BORDER, SuffixArray
from paceline.drafters.anpd import Anpd
from paceline.drafters.auto import Auto
from paceline.drafters.known_texts import KnownTexts
from paceline.drafters.llma import Llma
from paceline.drafters.rest import Rest
from paceline.drafters.suffix import Suffix
from paceline.protocols import Drafter
from paceline.records import Path as Accepted
from paceline.records import Round, TextStart
from tables import new_table

RESULTS = Path(__file__).parent / "results"
PASSES = ("smollm2-135m", "qwen2.5-coder-1.5b")
"""Models whose passes of one row costs are compared with, as `target_pass.py` has measured them."""
CONTEXTS = (1_000, 8_000)
DATASTORES = (0, 1_000_000, 10_000_000)
DOCUMENT = 2_000
BUDGET = 16
REPEATS = 3
ALL, UNITED = "all four", "auto of these"


@dataclass(frozen=True)
class SourceCost:
    """Microseconds of a round in the median, of the best repeat.

    datastore: its tokens. nodes: of a tree, on average. shares, cold_shares: model -> of a pass
    over one row.
    """

    source: str
    context: int
    datastore: int
    nodes: float
    observe_us: float
    propose_us: float
    cold_observe_us: float
    cold_propose_us: float
    shares: dict[str, float]
    cold_shares: dict[str, float]


def pass_milliseconds() -> dict[str, float]:
    """Model -> a pass over one row, from the committed results."""
    found = {}
    for model in PASSES:
        report = json.loads((RESULTS / f"target-pass-{model}.json").read_text("utf-8"))
        widths = {one["width"]: one["paceline_ms"] for one in report["passes"]["widths"]}
        found[model] = widths[1]
    return found


def all_costs(rounds: int, committed: int, seed: int, evicted_mib: int) -> Iterator[SourceCost]:
    """Every source behind every context, and with every datastore where it looks into one.

    committed: tokens of a round. evicted_mib: memory that is read before each round.
    """
    passes = pass_milliseconds()
    texts = MarkovTexts(seed)
    output = texts.text(rounds * committed)
    prompt = texts.text(max(CONTEXTS))
    stores = {size: _datastore(texts, size) for size in DATASTORES}
    memory = np.zeros(evicted_mib << 17)
    lookups: dict[str, Callable[[], Drafter]] = {"anpd": Anpd, "suffix": Suffix, "llma": Llma}

    def cost(source: str, context: int, size: int, make: Callable[[], Drafter]) -> SourceCost:
        def best(memory: NDArray[np.float64]) -> tuple[float, float, float]:
            times = [
                _times(make, prompt[-context:], output, committed, memory) for _ in range(REPEATS)
            ]
            return min(times, key=lambda one: one[0] + one[1])

        observe, propose, nodes = best(np.zeros(0))
        cold_observe, cold_propose, _ = best(memory)
        return SourceCost(
            source,
            context,
            size,
            nodes,
            observe,
            propose,
            cold_observe,
            cold_propose,
            {name: (observe + propose) / 1e3 / ms for name, ms in passes.items()},
            {name: (cold_observe + cold_propose) / 1e3 / ms for name, ms in passes.items()},
        )

    for context in CONTEXTS:
        alone = [cost(name, context, 0, make) for name, make in lookups.items()]
        yield from alone
        for size, arrays in stores.items():
            rest = _rest_on(arrays)
            found = cost("rest", context, size, rest)
            yield found
            yield _sum([*alone, found], size)
            made = {**lookups, "rest": rest}
            yield cost(UNITED, context, size, lambda made=made: Auto(_opened(made)))


def table(costs: Sequence[SourceCost]) -> Table:
    """As it is printed."""
    heads = [f"of {model}, {how}" for model in costs[0].shares for how in ("warm", "cold")]
    columns = ("context", "datastore", "nodes", "observe", "propose", "cold observe", "propose")
    shown = new_table("a round, microseconds; shares of a pass", "source", *columns, *heads)
    for one in costs:
        times = one.observe_us, one.propose_us, one.cold_observe_us, one.cold_propose_us
        shares = [
            f"{share[model]:.2%}" for model in one.shares for share in (one.shares, one.cold_shares)
        ]
        sizes = f"{one.context:,}", f"{one.datastore:,}", f"{one.nodes:.1f}"
        shown.add_row(one.source, *sizes, *(f"{time:.1f}" for time in times), *shares)
    return shown


def _times(
    make: Callable[[], Drafter],
    context: Sequence[int],
    output: Sequence[int],
    committed: int,
    memory: NDArray[np.float64],
) -> tuple[float, float, float]:
    """Medians of observing and proposing, and nodes of a tree on average."""
    drafter = make()
    drafter.start(TextStart(context))
    tree = drafter.propose(BUDGET)
    observing, proposing, nodes = [], [], 0
    for place in range(0, len(output), committed):
        # Lookups see the tokens alone: which nodes were accepted does not matter.
        said = tuple(output[place : place + committed])
        finished = Round(0, tree, torch.empty(0), Accepted(tuple(range(committed - 1)), said))
        memory.sum()
        begin = perf_counter()
        drafter.observe(finished)
        heard = perf_counter()
        tree = drafter.propose(BUDGET)
        proposing.append((perf_counter() - heard) * 1e6)
        observing.append((heard - begin) * 1e6)
        nodes += len(tree)
    return median(observing), median(proposing), nodes / len(observing)


def _sum(costs: Sequence[SourceCost], datastore: int) -> SourceCost:
    def added(of: Callable[[SourceCost], dict[str, float]]) -> dict[str, float]:
        return {name: sum(of(one)[name] for one in costs) for name in of(costs[0])}

    return SourceCost(
        ALL,
        costs[0].context,
        datastore,
        sum(one.nodes for one in costs),
        sum(one.observe_us for one in costs),
        sum(one.propose_us for one in costs),
        sum(one.cold_observe_us for one in costs),
        sum(one.cold_propose_us for one in costs),
        added(lambda one: one.shares),
        added(lambda one: one.cold_shares),
    )


def _rest_on(arrays: Sequence[SuffixArray]) -> Callable[[], Drafter]:
    return lambda: Rest(texts=KnownTexts(arrays))


def _opened(made: dict[str, Callable[[], Drafter]]) -> dict[str, Drafter]:
    return {name: make() for name, make in made.items()}


def _datastore(texts: MarkovTexts, tokens: int) -> list[SuffixArray]:
    """Documents of so many tokens together, sorted as a datastore has them."""
    if not tokens:
        return []
    documents = texts.documents(tokens // DOCUMENT, DOCUMENT)
    borders = np.full((len(documents), 1), BORDER, dtype=np.int32)
    return [SuffixArray(np.concatenate((documents, borders), axis=1).reshape(-1))]
