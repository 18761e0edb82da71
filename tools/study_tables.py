"""Tables of the scripts in benchmarks: docs/speed.md, docs/batches.md, docs/serve.md and
docs/planning.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench_tables import overall, tasks
from papers import LARGE, RESULTS, SMALL, Blocks, Cell, Columns, Sides, crossed, listed, report


def quality_table() -> str:
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


def caches_table() -> str:
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
        for weights, caches in report(f"caches-{SMALL}")["caches"].items()
        for name, one in caches.items()
    ]
    return listed(rows, columns, left=2)


def drafts_table() -> str:
    """What drafts cost, as shares of a one-row pass."""
    columns = {"ms": "{0[ms]:.2f}", "of a pass": "{0[share]:.1%}", "tokens per pass": "{0[tokens_per_pass]:.2f}"}  # fmt: skip
    rows = report("draft-shares")["rows"]
    found = {"a pass of one row" if name == "plain" else name: one for name, one in rows.items()}
    return crossed("", found, [(columns, found)])


def products_table() -> str:
    """Times of products alone, by format and rows."""
    found = report("products")
    products, machine = found["products"], found["machine"]

    def at(width: str) -> Cell:
        return lambda one: f"{one['milliseconds'][width]:.1f}"

    columns: Columns = {
        "MB": lambda one: f"{one['bytes'] / 1e6:.0f}",
        "reading them": "{0[milliseconds_to_read]:.1f}",
        **{f"{width} rows": at(width) for width in products["Q4_K"]["milliseconds"]},
    }
    return (
        f"{crossed('weights', products, [(columns, products)])}\n\n{machine['processor']}, "
        f"{machine['threads']} threads, {found['tier']}, "
        f"{products['Q4_K']['gigabytes_per_second']:.0f} GB/s; torch's packed matrices are four of "
        "twelve."
    )


def throughput_table(name: str) -> Callable[[], str]:
    """Tokens per second of all texts together, by number of texts at once."""

    def made() -> str:
        table = report(f"open-batch/{name}")["throughput"]["table"]
        columns = {
            "after_the_prompts": "after the prompts",
            "tokens_per_second": "prompts included",
        }
        rows = {
            f"`{row['method']}`, {title}": (row["method"], column)
            for column, title in columns.items()
            for row in table
        }
        blocks = []
        for count in sorted({row["at_once"] for row in table}):
            own = {row["method"]: row for row in table if row["at_once"] == count}
            cells = {
                label: (own[method][column], own[method][f"{column}_over_one"])
                for label, (method, column) in rows.items()
            }
            write = "{0[0]:.0f} ({0[1]:.2f}x)" if count > 1 else "{0[0]:.0f}"
            blocks.append(({str(count): write}, cells))
        return crossed("tokens per second, texts at once", rows, blocks)

    return made


def clients_table(name: str, *kinds: str) -> Callable[[], str]:
    """Throughput and latency by clients and method; `off` is the base of the ratios."""

    def made() -> str:
        rows = report(name)["rows"]
        off = {one["clients"]: one for one in rows if one["variant"] == "off"}

        def over(kind: str | None = None) -> Callable[[dict[str, Any]], str]:
            def speed(one: dict[str, Any]) -> float:
                return (one if kind is None else one["kinds"][kind])["tokens_per_second"]

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

    return made


def _replayed(study: str, columns: Mapping[str, str], whole: bool = False) -> str:
    """Speed-ups on recorded answers by file, of contenders, each under its heading. whole: also
    over all files, and with the number of known answers."""
    found = report(f"planning/{study}")
    blocks: Sides = []
    for name, heading in columns.items():
        one = found["contenders"][name]
        total = {"all, by time": one["speedup"]} if whole else {}
        blocks.append(({heading: "{0:.2f}x"}, one["files"] | total))
    if whole:
        answers = found["answers"]
        blocks.append(({"answers": "{0}"}, answers | {"all, by time": sum(answers.values())}))
    return crossed("file", blocks[0][1], blocks)


def memory_table() -> str:
    """Memory over prompts in a row."""

    def at(place: int) -> Cell:
        return lambda one: write.format(one["points"][place]["resident_bytes"] / 1e6, one["points"][place])  # fmt: skip

    write, found = "{0:,.0f}, {1[tensors]}, {1[phrases]}", report(f"memory-{SMALL}")
    marks = enumerate(found["marks"])
    columns = {f"{mark} prompts: MB, tensors, phrases": at(place) for place, mark in marks}
    return listed(found["methods"], {"": "`{0[method]}`", **columns})


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


def replayed_sources_table() -> str:
    """What each source did in the rounds of `auto` with answers."""
    found = report(f"planning/sources-{SMALL}")["contenders"]["auto with answers"]["sources"]
    columns: Columns = {
        "rounds asked": lambda did: f"{did['asked'] / did['rounds']:.0%}",
        **{key: f"{{0[{key}]:,}}" for key in ("proposed", "scored", "accepted", "gained")},
    }
    sources = {f"`{name}`": did for name, did in found.items()}
    return crossed("source", sources, [(columns, sources)])


OUROBOROS_MEMORY: Blocks = {"memory": memory_table}
SPEED: Blocks = {
    "gpu-methods": overall("gpu/methods/run", SMALL),
    "gpu-tasks": tasks("gpu/methods/run", SMALL),
    "products": products_table,
    "quality": quality_table,
    "caches": caches_table,
    "drafts": drafts_table,
}
BATCHES: Blocks = {name: throughput_table(name) for name in ("throughput", "throughput-float32")}
SERVE: Blocks = {
    "serve": clients_table(f"serve-{SMALL}", "chat", "summary", "edit"),
    "serve-edits": clients_table(f"serve-edits-{LARGE}"),
}
PLANNING: Blocks = {
    "planning": lambda: _replayed(SMALL, _PLANS),
    "left-out": lambda: _replayed(f"sources-{SMALL}", _SOURCES, whole=True),
    "replayed-sources": replayed_sources_table,
}
