"""What drafting costs: time per round of the n-gram drafters, and the making of an LLMA index.

    python benchmarks/drafting.py --json drafting.json

A round is what the loop spends outside of the target: observing 4 committed tokens and proposing
a tree. Prompts, outputs and references come from one Markov chain over a Zipf-like vocabulary, so
that runs of tokens come back as they do in text. Rounds include whatever Python does meanwhile,
garbage collection too: that is what a user gets.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import accumulate, islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import perf_counter

import psutil
import torch

from paceline.drafters.anpd import Anpd
from paceline.drafters.llma import Llma
from paceline.drafters.pld import PromptLookup
from paceline.drafters.suffix_index import SuffixIndex
from paceline.protocols import Drafter
from paceline.records import Path as Accepted
from paceline.records import Round, TextStart

CONTEXTS = (1_000, 8_000, 32_000)
REFERENCES = (0, 10_000, 100_000, 1_000_000)
DOCUMENT = 2_000  # tokens of one reference
BUDGET = 16
COMMITTED = 4  # tokens per round
VOCABULARY = 32_000
SUCCESSORS = 200


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


def markov_text(seed: int) -> Iterator[int]:
    """Endless tokens; each is followed by one of 200, the first of them far more often."""
    random = Random(seed)
    frequencies = list(accumulate(1 / (rank + 2.7) for rank in range(VOCABULARY)))
    choice = list(accumulate(1 / (rank + 1) for rank in range(SUCCESSORS)))
    followers: dict[int, list[int]] = {}
    token = 0
    while True:
        if token not in followers:
            followers[token] = random.choices(
                range(VOCABULARY), cum_weights=frequencies, k=SUCCESSORS
            )
        token = random.choices(followers[token], cum_weights=choice)[0]
        yield token


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
    text = markov_text(seed)
    output = list(islice(text, rounds * COMMITTED))
    prompt = list(islice(text, max(CONTEXTS)))
    corpus = list(islice(text, largest))
    for size in CONTEXTS:
        context = prompt[-size:]
        for make in (Anpd, PromptLookup):
            yield measure_rounds(make, context, output, ())
        for amount in REFERENCES:
            if amount <= largest:
                documents = [corpus[at : at + DOCUMENT] for at in range(0, amount, DOCUMENT)]
                yield measure_rounds(Llma, context, output, documents)


def indexed_texts(tokens: int, seed: int) -> Iterator[tuple[str, array[int]]]:
    """Texts that are likely, and texts that are hard on an index."""
    random = Random(seed)
    yield "text", array("i", islice(markov_text(seed), tokens))
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


def environment(seed: int) -> dict[str, object]:
    return {
        "command": " ".join(["python", *sys.argv]),
        "seed": seed,
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
    parser.add_argument("--rounds", type=int, default=2_000, help="measured per line")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="most tokens to index")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()

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
    if options.json:
        result = {
            "environment": environment(options.seed),
            "rounds": [asdict(cost) for cost in costs],
            "indexes": [asdict(index) for index in indexes],
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
