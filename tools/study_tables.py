"""Tables of the scripts in benchmarks: docs/speed.md, docs/serve.md and docs/planning.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from papers import Cells, crossed, orders, report, rows


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


def clients(name: str) -> Iterator[dict[str, Any]]:
    """Rows by clients and method, with tokens per second over those of `off`, the base."""
    off = {one["clients"]: one for one in rows(name, "rows") if one["variant"] == "off"}
    for one in rows(name, "rows"):
        base = off[one["clients"]]
        speeds = {kind: found["tokens_per_second"] for kind, found in one["kinds"].items()}
        bases = {kind: found["tokens_per_second"] for kind, found in base["kinds"].items()}
        kinds = {kind: speed / bases[kind] for kind, speed in speeds.items() if speed}
        yield one | {"over": one["tokens_per_second"] / base["tokens_per_second"], "over_by": kinds}


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


def asked(did: dict[str, int]) -> str:
    """The share of rounds in which a source was asked."""
    return f"{did['asked'] / did['rounds']:.0%}"
