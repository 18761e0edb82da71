"""Tables of the scripts in benchmarks: docs/speed.md, docs/batches.md, docs/serve.md and
docs/planning.md."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from papers import RESULTS, SMALL, Cell, Columns, crossed, listed, report


def quality() -> str:
    """What quantised weights cost in quality."""
    reports = [report(path.stem) for path in sorted(RESULTS.glob("weights-quality-*.json"))]
    columns = {
        "model": "{0[model]}",
        "weights": "`{0[name]}`",
        "perplexity": "{0[perplexity]:.3f}",
        "best token as with native weights": "{0[best_token_agrees]:.1%}",
    }
    rows = [
        {"model": found["model"], "name": name, **one}
        for found in reports
        for name, one in found["weights"].items()
    ]
    return listed(rows, columns, left=2)


def caches(model: str) -> str:
    """What KV caches of fewer bits cost in quality."""
    columns: Columns = {
        "weights": "{0[weights]}",
        "cache": "{0[cache]}",
        "MB per 1,000 tokens": lambda one: f"{one['slot_bytes'] / 1e3:.1f}",
        "perplexity": "{0[perplexity]:.3f}",
        "best token as with float32": "{0[best_token_agrees]:.1%}",
    }
    rows = [
        {"weights": weights, "cache": name, **one}
        for weights, caches in report(f"caches-{model}")["caches"].items()
        for name, one in caches.items()
    ]
    return listed(rows, columns, left=2)


def drafts() -> str:
    """What drafts cost, as shares of a one-row pass."""
    columns: Columns = {
        "": lambda one: "a pass of one row" if one["name"] == "plain" else one["name"],
        "ms": "{0[ms]:.2f}",
        "of a pass": "{0[share]:.1%}",
        "tokens per pass": "{0[tokens_per_pass]:.2f}",
    }
    return listed(_named(report("draft-shares")["rows"]), columns)


def _named(rows: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, **row} for name, row in rows.items()]


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


def clients(name: str, *kinds: str) -> str:
    """Throughput and latency by clients and method; `off` is the base of the ratios."""
    rows = report(name)["rows"]
    off = {one["clients"]: one for one in rows if one["variant"] == "off"}

    def over(kind: str | None = None) -> Cell:
        def speed(one: dict[str, Any]) -> float:
            return float((one["kinds"][kind] if kind else one)["tokens_per_second"])

        return lambda one: f"{speed(one) / speed(off[one['clients']]):.2f}x"

    columns: Columns = {
        "clients": "{0[clients]}",
        "method": "{0[variant]}",
        "tokens/s": "{0[tokens_per_second]:.0f}",
        "over off": over(),
        **{kind: over(kind) for kind in kinds},
        "first token": lambda one: f"{1e3 * one['first_token_median']:.0f} ms",
        "95 %": lambda one: f"{1e3 * one['first_token_p95']:.0f} ms",
    }
    return listed(rows, columns, left=2)


def _replayed(study: str, columns: Mapping[str, str], whole: bool = False) -> str:
    """Speed-ups on recorded answers by file, of contenders, each under its heading. whole: also
    over all files, and with the number of known answers."""
    found = report(f"planning/{study}")
    cells = {}
    for name, heading in columns.items():
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


def crossings() -> str:
    """The plot, and the ratios at which one method beats another."""
    found = report(f"ouroboros/simulation-{SMALL}")
    first, *_, last = found["ratios"]

    def stretch(begin: float, end: float) -> str:
        if begin == first:
            return "always" if end == last else f"up to {end:.2f}"
        return f"from {begin:.2f} on" if end == last else f"{begin:.2f} to {end:.2f}"

    def ahead(name: str) -> Cell:
        return lambda one: ", ".join(stretch(*each) for each in one["ahead"][name]) or "never"

    columns: Columns = {
        "acceptance, rows of a pass, task": lambda one: (
            f"{one['acceptance']}, {one['rows']}, {one['task'].replace('_', ' ')}"
        ),
        **{name: ahead(name) for name in found["simulations"][0]["ahead"]},
    }
    return (
        "![speed-up by cost ratio](images/ouroboros-simulation.png)\n\n"
        f"{listed(found['simulations'], columns)}\n\nThe ratio here is {found['cost_ratio']:.2f}."
    )


_PLANS = {
    **{f"anpd, {budget}": f"ANPD, {budget}" for budget in (1, 3, 5)},
    "anpd, as proposed": "whole",
    "anpd as in its paper, planned": "planned",
    "anpd, planned": "planned, long",
    "anpd, planned without a curve": "no curve",
    "llma, as proposed": "LLMA, whole",
    "llma, planned": "planned, long",
    "pld, as proposed": "lookup, whole",
    "pld, planned": "planned",
}
_SOURCES = {
    "anpd": "ANPD",
    "auto, nothing kept": "`auto`, nothing kept",
    "auto": "`auto`",
    "auto with answers": "with answers",
    **{name: name for name in (f"without {one}" for one in ("anpd", "suffix", "llma", "rest"))},
}


def plans() -> str:
    """Planned trees against fixed budgets, on a simulated clock."""
    return _replayed(SMALL, _PLANS)


def left_out() -> str:
    """Leaving out each source of `auto` in turn."""
    return _replayed(f"sources-{SMALL}", _SOURCES, whole=True)


def replayed_sources() -> str:
    """What each source did in the rounds of `auto` with answers."""
    found = report(f"planning/sources-{SMALL}")["contenders"]["auto with answers"]["sources"]
    columns: Columns = {
        "source": "`{0[name]}`",
        "rounds asked": lambda did: f"{did['asked'] / did['rounds']:.0%}",
        **{key: f"{{0[{key}]:,}}" for key in ("proposed", "scored", "accepted", "gained")},
    }
    return listed(_named(found), columns)
