"""Tables of the scripts in benchmarks: docs/speed.md, docs/batches.md, docs/serve.md and
docs/planning.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from papers import SMALL, Cell, Cells, crossed, orders, report, rows


def products() -> str:
    """Times of products alone, by format and rows."""
    found = report("products")
    machine, products = found["machine"], found["products"]
    cells = {}
    for name, one in products.items():
        cells[name, "MB"] = f"{one['bytes'] / 1e6:.0f}"
        cells[name, "reading them"] = f"{one['milliseconds_to_read']:.1f}"
        for width, taken in one["milliseconds"].items():
            cells[name, f"{width} rows"] = f"{taken:.1f}"
    return (
        f"{crossed('weights', cells)}\n\n{machine['processor']}, {machine['threads']} threads, "
        f"{found['tier']}, {products['Q4_K']['gigabytes_per_second']:.0f} GB/s; torch's packed "
        "matrices are four of twelve."
    )


def throughput(name: str) -> str:
    """Tokens per second of all texts together, by number of texts at once."""
    table = report(f"open-batch/{name}")["throughput"]["table"]
    columns = {"after_the_prompts": "after the prompts", "tokens_per_second": "prompts included"}
    cells = {}
    for (column, title), row in product(columns.items(), table):
        over_one = f" ({row[f'{column}_over_one']:.2f}x)" if row["at_once"] > 1 else ""
        label = f"`{row['method']}`, {title}"
        cells[label, str(row["at_once"])] = f"{row[column]:.0f}{over_one}"
    return crossed("tokens per second, texts at once", cells)


def clients(name: str) -> Iterator[dict[str, Any]]:
    """Rows by clients and method, with tokens per second over those of `off`, the base."""
    off = {one["clients"]: one for one in rows(name, "rows") if one["variant"] == "off"}
    for one in rows(name, "rows"):
        base = off[one["clients"]]
        kinds = {
            kind: found["tokens_per_second"] / base["kinds"][kind]["tokens_per_second"]
            for kind, found in one["kinds"].items()
            if found["tokens_per_second"]
        }
        yield {
            **one,
            "over": one["tokens_per_second"] / base["tokens_per_second"],
            "over_by": kinds,
        }


def replayed(study: str, shown: str) -> str:
    """Speed-ups on recorded answers by file; if there are known answers, also over all files."""
    found = report(f"planning/{study}")
    cells: Cells = {}
    whole = any(found.get("answers", {}).values())
    for name, heading in orders()["rows"][shown].items():
        one = found["contenders"][name]
        speedups = one["files"] | ({"all, by time": one["speedup"]} if whole else {})
        cells |= {(file, (name, heading)): f"{speed:.2f}x" for file, speed in speedups.items()}
    if whole:
        answers = {**found["answers"], "all, by time": sum(found["answers"].values())}
        cells |= {(file, "answers"): str(count) for file, count in answers.items()}
    return crossed("file", cells)


def memory() -> str:
    """Memory over prompts in a row."""
    cells = {}
    for one in report(f"memory-{SMALL}")["methods"]:
        for at in one["points"]:
            found = f"{at['resident_bytes'] / 1e6:,.0f}, {at['tensors']}, {at['phrases']}"
            cells[f"`{one['method']}`", f"{at['prompts']} prompts: MB, tensors, phrases"] = found
    return crossed("", cells)


def stretches(versus: str) -> Cell:
    """Cost ratios at which one method is faster than another, in words."""
    first, *_, last = report(f"ouroboros/simulation-{SMALL}")["ratios"]

    def words(begin: float, end: float) -> str:
        if begin == first:
            return "always" if end == last else f"up to {end:.2f}"
        return f"from {begin:.2f} on" if end == last else f"{begin:.2f} to {end:.2f}"

    return lambda one: ", ".join(words(*each) for each in one["ahead"][versus]) or "never"


def simulated(one: dict[str, str]) -> str:
    """What a simulation takes as given."""
    return f"{one['acceptance']}, {one['rows']}, {one['task'].replace('_', ' ')}"


def ratio_here() -> str:
    """The cost ratio of the default model and its draft model."""
    return f"The ratio here is {report(f'ouroboros/simulation-{SMALL}')['cost_ratio']:.2f}."


def drafted(one: dict[str, Any]) -> str:
    """What was timed, in words."""
    return "a pass of one row" if one["name"] == "plain" else str(one["name"])


def asked(did: dict[str, int]) -> str:
    """The share of rounds in which a source was asked."""
    return f"{did['asked'] / did['rounds']:.0%}"
