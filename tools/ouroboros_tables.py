"""Tables for docs/paper-ouroboros.md: our figures beside the paper's (Zhao et al. 2024, arXiv
2402.13720)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from statistics import stdev
from typing import Any

from papers import figures

from paceline.bench.metrics import speedup_interval
from paceline.tables import markdown_table

RESULTS = Path(__file__).parent.parent / "benchmarks/results"
MODEL, LARGE = "smollm2-135m", "qwen2.5-coder-1.5b"
PICTURE = Path(__file__).parent.parent / "docs/images/ouroboros-simulation.png"

THEIR_PARTS, THEIR_EFFICIENCY = figures("ouroboros", "4"), figures("ouroboros", "12")
THEIR_SAMPLING, THEIR_LENGTHS = figures("ouroboros", "3"), figures("ouroboros", "14")
THEIR_LOCALITY = figures("ouroboros", "16")
METHODS = ("speculative", "lookahead", "ouroboros")
WHOLE = "+ history"
COPY_METHODS = ("anpd", "speculative", "speculative, anpd inside", WHOLE, "anpd inside, lengthened by phrases")  # fmt: skip

Report = dict[str, Any]
Row = Mapping[str, Any]


def measured(
    *studies: str, model: str = MODEL
) -> Callable[[Callable[..., str]], Callable[[], str]]:
    """Decorate a table of these result files; it becomes a sentence if one is missing."""

    def of(table: Callable[..., str]) -> Callable[[], str]:
        @wraps(table)
        def made() -> str:
            paths = [RESULTS / f"{study}-{model}.json" for study in studies]
            if not all(path.exists() for path in paths):
                return "Not measured yet."
            return table(*(json.loads(path.read_text("utf-8")) for path in paths))

        return made

    return of


def _named(report: Report, temperature: float = 0.0) -> dict[str, Row]:
    """Contenders by name; the whole of Ouroboros also as "ouroboros"."""
    found = {one["name"]: one for one in report["contenders"] if one["temperature"] == temperature}
    return {**found, "ouroboros": found[WHOLE]} if WHOLE in found else found


def _over(one: Row, other: Row) -> str:
    return f"{one['tokens_per_second'] / other['tokens_per_second']:.2f}x"


def _compared(one: Row, other: Row) -> str:
    """The speed-up over another, with its interval if the times of texts were kept."""
    found = _over(one, other)
    if one is other or "texts" not in one or "texts" not in other:
        return found
    pairs = [(*one["texts"][text], *other["texts"][text]) for text in other["texts"]]
    low, high = speedup_interval(pairs)
    return f"{found} ({low:.2f} to {high:.2f})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _head(*names: str) -> list[list[str]]:
    return [list(names)]


def _parts(report: Report) -> str:
    """Table 4: part by part."""
    named = _named(report)
    rows = _head(
        "", "over plain", "tokens per pass", "draft passes per pass", "ms per draft pass",
        "ms per pass", "time drafting", "over speculative", "paper: over speculative",
    )  # fmt: skip
    for one in report["contenders"]:
        theirs = THEIR_PARTS.get(one["name"])
        rows.append(
            [
                one["name"],
                _compared(one, named["plain"]),
                f"{one['tokens_per_pass']:.2f}",
                f"{one['draft_passes'] / one['passes']:.2f}",
                _number(one["ms_per_draft_pass"]),
                _number(one["ms_per_pass"]),
                f"{one['shares']['draft']:.0%}",
                _compared(one, named["speculative"]) if "speculative" in named else "",
                "" if theirs is None else f"{theirs / THEIR_PARTS['speculative']:.2f}x",
            ]
        )
    return markdown_table(rows)


def _copy_tasks(report: Report) -> str:
    """Speed-up over plain decoding by task."""
    named = _named(report)
    plain = named["plain"]["tasks"]
    shown = [name for name in COPY_METHODS if name in named]
    rows = _head("", *shown)
    for task in plain:
        cells = [_over(named[name]["tasks"][task], plain[task]) for name in shown]
        rows.append([task.replace("_", " "), *cells])
    return markdown_table(rows)


@measured("ouroboros/fixed")
def efficiency_table(report: Report) -> str:
    """Table 12: tokens per pass of the target, ours and the paper's."""
    named = _named(report)
    rows = _head("", *(f"{name}{whose}" for name in METHODS for whose in ("", ", paper")))
    for task, theirs in THEIR_EFFICIENCY.items():
        if task not in named["plain"]["tasks"]:
            continue
        cells = [task.replace("_", " ")]
        for name, paper in zip(METHODS, theirs):
            cells += [f"{named[name]['tasks'][task]['tokens_per_pass']:.2f}", f"{paper:.2f}"]
        rows.append(cells)
    return markdown_table(rows)


@measured("ouroboros/fixed", "ouroboros/planned")
def tasks_table(fixed: Report, planned: Report) -> str:
    """Speed-up over plain decoding by task, fixed and planned."""
    both = {"fixed": _named(fixed), "planned": _named(planned)}
    rows = _head("", *(f"{name}, {how}" for how in both for name in METHODS))
    for task in both["fixed"]["plain"]["tasks"]:
        if task in both["planned"]["plain"]["tasks"]:
            found = [
                _over(named[name]["tasks"][task], named["plain"]["tasks"][task])
                for named in both.values()
                for name in METHODS
            ]
            rows.append([task.replace("_", " "), *found])
    return markdown_table(rows)


@measured("ouroboros/fixed", "ouroboros/temperatures")
def sampling_table(greedy: Report, sampled: Report) -> str:
    """Table 3: speed-up at three temperatures."""
    reports = {0.0: greedy, 0.5: sampled, 1.0: sampled}
    titles = [f"T = {temperature}{whose}" for temperature in reports for whose in ("", ", paper")]
    rows = _head("", *titles)
    for task, theirs in THEIR_SAMPLING.items():
        for name, speeds in zip(METHODS, theirs[1:]):
            cells = [f"{task.replace('_', ' ')}, {name}"]
            for (temperature, report), speed, plain in zip(reports.items(), speeds, theirs[0]):
                named = _named(report, temperature)
                ours = [named[one]["tasks"].get(task) for one in (name, "plain")]
                cells += ["" if None in ours else _over(*ours), f"{speed / plain:.2f}x"]
            rows.append(cells)
    return markdown_table(rows)


@measured("ouroboros/sensitivity")
def sensitivity_table(report: Report) -> str:
    """Table 9: speed-up by draft length, window and level."""
    named = _named(report)
    plain = named.pop("plain")
    speeds = {
        tuple(map(int, name.split(", "))): one["tokens_per_second"] / plain["tokens_per_second"]
        for name, one in named.items()
    }
    columns = list(dict.fromkeys(key[1:] for key in speeds))
    rows = _head("draft length", *(f"W {window}, N {level}" for window, level in columns))
    for length in dict.fromkeys(key[0] for key in speeds):
        rows.append([str(length), *(f"{speeds[(length, *column)]:.2f}x" for column in columns)])
    spread = stdev(speeds.values()) if len(speeds) > 1 else 0.0
    return f"{markdown_table(rows)}\n\nStandard deviation of the speed-up: {spread:.2f}; the paper's: 0.04."


@measured("ouroboros/lengths")
def lengths_table(report: Report) -> str:
    """Table 14: speed-up by generation length."""
    named = _named(report)
    marks = list(named["plain"]["lengths"])
    rows = _head("", *(f"up to {mark}" for mark in marks), *(f"paper: {n}" for n in (64, 128, 256, 512)))  # fmt: skip
    for name, one in named.items():
        if name == "plain":
            continue
        ours = [_over(one["lengths"][mark], named["plain"]["lengths"][mark]) for mark in marks]
        theirs = [f"{speed:.2f}x" for speed in THEIR_LENGTHS.get(name, ())] or [""] * 4
        rows.append([name, *ours, *theirs])
    return markdown_table(rows)


@measured("ouroboros/locality")
def locality_table(report: Report) -> str:
    """Table 16: orders of texts of several tasks, phrases kept or not."""
    named = _named(report)
    cold = named["cold start"]
    rows = _head("", "over plain", "tokens per pass", "draft passes per pass", "over cold start", "paper: over cold start")  # fmt: skip
    for name, speed in THEIR_LOCALITY.items():
        one = named[name]
        rows.append(
            [
                name,
                _over(one, named["plain"]),
                f"{one['tokens_per_pass']:.2f}",
                f"{one['draft_passes'] / one['passes']:.2f}",
                _over(one, cold),
                f"{speed / THEIR_LOCALITY['cold start']:.2f}x",
            ]
        )
    return markdown_table(rows)


@measured("ouroboros/simulation")
def crossings_table(report: Report) -> str:
    """The plot, if it exists, and the ratios at which one method beats another."""
    names = list(report["simulations"][0]["ahead"])
    rows = _head("acceptance, rows of a pass, task", *names)
    for one in report["simulations"]:
        label = f"{one['acceptance']}, {one['rows']}, {one['task'].replace('_', ' ')}"
        ends = report["ratios"][0], report["ratios"][-1]
        rows.append([label, *(_stretches(one["ahead"][name], *ends) for name in names)])
    ratio = f"The ratio here is {report['cost_ratio']:.2f}."
    picture = f"![speed-up by cost ratio](images/{PICTURE.name})\n\n" if PICTURE.exists() else ""
    return f"{picture}{markdown_table(rows)}\n\n{ratio}"


def _stretches(stretches: list[tuple[float, float]], least: float, most: float) -> str:
    """Ratios in words: "up to 0.12", "from 0.07 on", "0.05 to 0.20", "always", "never"."""
    found = []
    for begin, end in stretches:
        if (begin, end) == (least, most):
            return "always"
        if begin == least:
            found.append(f"up to {end:.2f}")
        elif end == most:
            found.append(f"from {begin:.2f} on")
        else:
            found.append(f"{begin:.2f} to {end:.2f}")
    return ", ".join(found) or "never"


STUDIES = ("fixed", "planned", "copy", "temperatures", "sensitivity", "lengths", "locality")


def texts_table() -> str:
    """How many texts were compared with plain decoding's, and how many differ."""
    rows = _head("study", "texts compared", "different", "largest gap where they part")
    for study in STUDIES:
        path = RESULTS / f"ouroboros/{study}-{MODEL}.json"
        if path.exists():
            report = json.loads(path.read_text("utf-8"))
            gaps = [one["gap"] for one in report["different"] if one["gap"] is not None]
            gap = f"{max(gaps):.1e}" if gaps else ""
            rows.append([study, str(report["compared_texts"]), str(report["different_texts"]), gap])
    return markdown_table(rows) if len(rows) > 1 else "Not measured yet."


@measured("memory")
def memory_table(report: Report) -> str:
    """Memory over a hundred prompts in a row."""
    marks = report["marks"]
    rows = _head("", *(f"{mark} prompts: MB, tensors, phrases" for mark in marks))
    for one in report["methods"]:
        cells = [
            f"{(point['resident_bytes'] or 0) / 1e6:,.0f}, {point['tensors']}, {point['phrases']}"
            for point in one["points"]
        ]
        rows.append([f"`{one['method']}`", *cells])
    return markdown_table(rows)


OUROBOROS: dict[str, Callable[[], str]] = {
    "parts-fixed": measured("ouroboros/fixed")(_parts),
    "parts-planned": measured("ouroboros/planned")(_parts),
    "parts-copy": measured("ouroboros/copy")(_parts),
    "parts-copy-large": measured("ouroboros/copy", model=LARGE)(_parts),
    "tasks-copy": measured("ouroboros/copy")(_copy_tasks),
    "tasks-copy-large": measured("ouroboros/copy", model=LARGE)(_copy_tasks),
    "efficiency": efficiency_table,
    "tasks": tasks_table,
    "sampling": sampling_table,
    "sensitivity": sensitivity_table,
    "lengths": lengths_table,
    "locality": locality_table,
    "crossings": crossings_table,
    "texts": texts_table,
    "memory": memory_table,
}
"""The blocks of docs/paper-ouroboros.md."""
