"""Measure the cost of a pass after a long text, by rows and by the dtype of the KV cache.

    python benchmarks/long_texts.py --models smollm2-135m qwen2.5-coder-1.5b --json FILE

For each model and cache dtype: passes of several widths after each context, and a pass over eight
texts beside an eight-row pass over one text as long as the eight together. All passes of a context
take turns; the least time of each counts, so other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from random import Random
from time import perf_counter
from typing import Any

import paceline
from paceline.machine import describe_machine, describe_versions
from paceline.protocols import Target
from paceline.records import Path
from paceline.targets.cache_dtypes import CACHE_DTYPES
from paceline.tree import EMPTY, Tree
from tables import new_table, show, shown_command

TEXTS = 8


def main() -> None:
    options = _arguments()
    report: dict[str, Any] = {"command": shown_command(), "versions": describe_versions()}
    report["models"] = []
    for model in options.models:
        for dtype in options.cache_dtypes:
            session = paceline.load(model, "plain", weights=options.weights, cache_dtype=dtype)
            target = session.target
            report["machine"] = describe_machine(target.describe())
            found = {"model": FilePath(model).name, **_measured(target, options)}
            report["models"].append(found)
            _show(found)
            if options.json is not None:
                options.json.write_text(json.dumps(report, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["smollm2-135m"])
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--cache-dtypes", nargs="+", default=[*CACHE_DTYPES], choices=CACHE_DTYPES)
    parser.add_argument("--contexts", type=int, nargs="+", default=[300, 1000, 4000])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16], help="1 is added")
    parser.add_argument("--repeats", type=int, default=15, help="passes of each kind")
    parser.add_argument("--json", type=FilePath, help="write the results there, too")
    options = parser.parse_args()
    options.rows = sorted({1, *options.rows})
    return options


def _measured(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    random, rows = Random(0), []
    for context in options.contexts:
        slot = _entered(target, random, context)
        trees = {width: _chain(target, random, width) for width in options.rows}
        passes = {
            width: lambda tree=tree, slot=slot: target.score({slot: tree})
            for width, tree in trees.items()
        }
        rows.append({"context": context, "ms": _least(passes, options.repeats)})
        target.close(slot)
        target.forget()
    longest = options.contexts[-1]
    one, tree = _entered(target, random, longest), _chain(target, random, TEXTS)
    several = {_entered(target, random, longest // TEXTS): EMPTY for _ in range(TEXTS)}
    both = _least(
        {
            "texts": lambda: target.score(several),
            "rows": lambda: target.score({one: tree}),
        },
        options.repeats,
    )
    return {
        "cache": target.describe().report["cache"],
        "passes": rows,
        "batch": {"texts": TEXTS, "tokens": longest // TEXTS, "ms": both},
    }


def _entered(target: Target, random: Random, context: int) -> int:
    """The slot of a text with `context` tokens in the cache."""
    text = [random.randrange(target.vocab_size) for _ in range(context + 1)]
    slot = target.open(text[:-1])
    target.score({slot: EMPTY})
    target.commit({slot: Path((), (text[-1],))})
    return slot


def _chain(target: Target, random: Random, rows: int) -> Tree:
    tokens = [random.randrange(target.vocab_size) for _ in range(rows - 1)]
    return Tree.chain(tokens) if tokens else EMPTY


def _least(passes: Mapping[Any, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least milliseconds of each pass."""
    seconds: dict[str, list[float]] = {str(name): [] for name in passes}
    for repeat in range(repeats + 1):
        for name, run in passes.items():
            began = perf_counter()
            run()
            if repeat:  # the first round warms up
                seconds[str(name)].append(perf_counter() - began)
    return {name: 1000 * min(taken) for name, taken in seconds.items()}


def _show(found: Mapping[str, Any]) -> None:
    cache = found["cache"]
    title = f"{found['model']}, cache in {cache['dtype']}, ms of a pass"
    widths: Sequence[str] = list(found["passes"][0]["ms"])
    table = new_table(title, "context", *(f"{width} rows" for width in widths), "8 rows of 1")
    for row in found["passes"]:
        times = row["ms"]
        relative = f"{times['8'] / times['1']:.2f}x" if "8" in times else ""
        table.add_row(str(row["context"]), *(f"{times[each]:.1f}" for each in widths), relative)
    show(table)
    batch = found["batch"]
    title = f"{batch['texts']} texts of {batch['tokens']} tokens, one row each, and one text"
    table = new_table(title, "", "ms")
    table.add_row(f"{batch['texts']} texts", f"{batch['ms']['texts']:.1f}")
    table.add_row(f"one text, {batch['texts']} rows", f"{batch['ms']['rows']:.1f}")
    show(table)


if __name__ == "__main__":
    main()
