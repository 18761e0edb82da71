"""What drafting costs: time per round of the n-gram drafters, and the making of an LLMA index.

    python benchmarks/drafting.py --json drafting.json
    python benchmarks/drafting.py --sources --rounds 300 --json drafting-sources.json

A round is what the loop spends outside of the target: observing 4 committed tokens and proposing
a tree. Prompts, outputs and references come from one Markov chain, see `markov_texts.py`. Rounds
include whatever Python does meanwhile, garbage collection too: that is what a user gets.

With --sources it is the cheap sources of `auto`, as shares of passes: see `source_costs.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import perf_counter

import psutil
import torch

from markov_texts import MarkovTexts
from paceline.drafters.anpd import Anpd
from paceline.drafters.llma import Llma
from paceline.drafters.pld import PromptLookup
from paceline.drafters.suffix_index import SuffixIndex
from paceline.protocols import Drafter
from paceline.records import Path as Accepted
from paceline.records import Round, TextStart
from source_costs import all_costs, table
from tables import show, shown_command

CONTEXTS = (1_000, 8_000, 32_000)
REFERENCES = (0, 10_000, 100_000, 1_000_000)
DOCUMENT = 2_000  # tokens of one reference
BUDGET = 16
COMMITTED = 4  # tokens per round


@dataclass(frozen=True)
class RoundCost:
    """Times of one drafter with one context; a round's are in microseconds."""

    drafter: str
    context: int
    references: int
    start_seconds: float
    median_us: float
    p99_us: float
    max_us: float
    mean_nodes: float


@dataclass(frozen=True)
class IndexCost:
    """The making of a `SuffixIndex`; memory is what the process grew by and what it had then."""

    text: str
    tokens: int
    seconds: float
    grown_mib: float
    resident_mib: float


def measure_rounds(
    make: Callable[[], Drafter],
    context: Sequence[int],
    output: Sequence[int],
    references: Sequence[Sequence[int]],
) -> RoundCost:
    """Times the rounds in which `output` is committed behind `context`."""
    drafter = make()
    begin = perf_counter()
    drafter.start(TextStart(context, references))
    start_seconds = perf_counter() - begin
    tree = drafter.propose(BUDGET)
    times, nodes = [], 0
    for place in range(0, len(output), COMMITTED):
        # These drafters look at the tokens alone: which nodes were accepted does not matter.
        path = Accepted(tuple(range(COMMITTED - 1)), tuple(output[place : place + COMMITTED]))
        finished = Round(0, tree, torch.empty(0), path)
        begin = perf_counter()
        drafter.observe(finished)
        tree = drafter.propose(BUDGET)
        times.append((perf_counter() - begin) * 1e6)
        nodes += len(tree)
    return RoundCost(
        drafter=type(drafter).__name__,
        context=len(context),
        references=sum(map(len, references)),
        start_seconds=start_seconds,
        median_us=median(times),
        p99_us=quantiles(times, n=100)[-1],
        max_us=max(times),
        mean_nodes=nodes / len(times),
    )


def all_rounds(rounds: int, largest: int, seed: int) -> Iterator[RoundCost]:
    """Each drafter with each context, LLMA with each amount of references too."""
    texts = MarkovTexts(seed)
    output, prompt = texts.text(rounds * COMMITTED), texts.text(max(CONTEXTS))
    corpus = texts.documents(-(-largest // DOCUMENT), DOCUMENT).tolist()
    for size in CONTEXTS:
        context = prompt[-size:]
        for make in (Anpd, PromptLookup):
            yield measure_rounds(make, context, output, ())
        for amount in REFERENCES:
            if amount <= largest:
                yield measure_rounds(Llma, context, output, corpus[: amount // DOCUMENT])


def indexed_texts(tokens: int, seed: int) -> Iterator[tuple[str, array[int]]]:
    """Texts that are likely, and texts that are hard on an index."""
    random = Random(seed)
    documents = MarkovTexts(seed).documents(-(-tokens // DOCUMENT), DOCUMENT)
    yield "text", array("i", documents.reshape(-1)[:tokens].tolist())
    yield "one token", array("i", [1]) * tokens
    yield "two tokens in turn", array("i", [1, 2]) * (tokens // 2)
    yield "two tokens at random", array("i", (random.randrange(2) for _ in range(tokens)))


def measure_index(name: str, text: Sequence[int], seed: int) -> IndexCost:
    """Indexes one text, in a process which no earlier work has left free memory to."""
    process = psutil.Process()
    before = process.memory_info().rss
    begin = perf_counter()
    index = SuffixIndex(seed)
    index.add(text)
    seconds = perf_counter() - begin
    after = process.memory_info().rss
    return IndexCost(name, len(index), seconds, (after - before) / 2**20, after / 2**20)


def in_fresh_process(name: str, text: Sequence[int], seed: int) -> IndexCost:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure_index, name, text, seed).result()


def environment(options: argparse.Namespace) -> dict[str, object]:
    return {
        "command": shown_command(),
        "seed": options.seed,
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "paceline": version("paceline"),
        "budget": BUDGET,
        "committed_per_round": COMMITTED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", action="store_true", help="the cheap sources of auto instead")
    parser.add_argument("--rounds", type=int, default=2_000, help="measured per line")
    parser.add_argument("--evicted", type=int, default=64, help="MiB read before a source's round")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="most tokens to index")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()

    result = source_result(options) if options.sources else drafter_result(options)
    if options.json:
        result = {"environment": environment(options), **result}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def source_result(options: argparse.Namespace) -> dict[str, object]:
    """The cheap sources of `auto`, shown and as records."""
    costs = list(all_costs(options.rounds, COMMITTED, options.seed, options.evicted))
    show(table(costs))
    return {"evicted_mib": options.evicted, "sources": [asdict(cost) for cost in costs]}


def drafter_result(options: argparse.Namespace) -> dict[str, object]:
    """Rounds of the drafters and the making of indexes, shown and as records."""
    costs, indexes = [], []
    print("drafter       context  references   start s  median us    p99 us    max us  nodes")
    for cost in all_rounds(options.rounds, options.tokens, options.seed):
        costs.append(cost)
        print(
            f"{cost.drafter:12} {cost.context:8} {cost.references:11} {cost.start_seconds:9.3f}"
            f" {cost.median_us:10.1f} {cost.p99_us:9.1f} {cost.max_us:9.1f} {cost.mean_nodes:6.1f}",
            flush=True,
        )
    print("\nindexed text             tokens   seconds  grown MiB  resident MiB")
    for name, text in indexed_texts(options.tokens, options.seed):
        index = in_fresh_process(name, text, options.seed)
        indexes.append(index)
        print(
            f"{index.text:20} {index.tokens:10} {index.seconds:9.2f}"
            f" {index.grown_mib:10.0f} {index.resident_mib:13.0f}",
            flush=True,
        )
    return {
        "rounds": [asdict(cost) for cost in costs],
        "indexes": [asdict(index) for index in indexes],
    }


if __name__ == "__main__":
    main()
