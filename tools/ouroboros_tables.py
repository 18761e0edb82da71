"""Tables for docs/paper-ouroboros.md: our figures beside the paper's (Zhao et al. 2024, arXiv
2402.13720)."""

from __future__ import annotations

from statistics import stdev

from ouroboros_copy_tables import (
    by_task,
    others_table,
    parts,
    paying_table,
    phrases_table,
    tradeoff_table,
    weights_table,
)
from ouroboros_reports import Report, draft_passes, measured, named_rows, of_paper, over
from papers import LARGE, SMALL, Blocks, figures, listed, report

from paceline.tables import markdown_table

PICTURE = "![speed-up by cost ratio](images/ouroboros-simulation.png)"

THEIR_EFFICIENCY = figures("ouroboros", "12")
THEIR_SAMPLING, THEIR_LENGTHS = figures("ouroboros", "3"), figures("ouroboros", "14")
THEIR_LOCALITY = figures("ouroboros", "16")
METHODS = ("speculative", "lookahead", "ouroboros")


@measured("ouroboros/fixed")
def efficiency_table(report: Report) -> str:
    """Table 12: tokens per pass of the target, ours and the paper's."""
    named = named_rows(report)
    rows = [["", *(f"{name}{whose}" for name in METHODS for whose in ("", ", paper"))]]
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
    both = {"fixed": named_rows(fixed), "planned": named_rows(planned)}
    rows = [["", *(f"{name}, {how}" for how in both for name in METHODS)]]
    for task in both["fixed"]["plain"]["tasks"]:
        if task in both["planned"]["plain"]["tasks"]:
            found = [
                over(named[name]["tasks"][task], named["plain"]["tasks"][task])
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
    rows = [["", *titles]]
    for task, theirs in THEIR_SAMPLING.items():
        for name, speeds in zip(METHODS, theirs[1:]):
            cells = [f"{task.replace('_', ' ')}, {name}"]
            for (temperature, run), speed, plain in zip(reports.items(), speeds, theirs[0]):
                named = named_rows(run, temperature)
                ours = [named[one]["tasks"].get(task) for one in (name, "plain")]
                cells += ["" if None in ours else over(*ours), f"{speed / plain:.2f}x"]
            rows.append(cells)
    return markdown_table(rows)


@measured("ouroboros/sensitivity")
def sensitivity_table(report: Report) -> str:
    """Table 9: speed-up by draft length, window and level."""
    named = named_rows(report)
    plain = named.pop("plain")
    speeds = {
        tuple(map(int, name.split(", "))): one["tokens_per_second"] / plain["tokens_per_second"]
        for name, one in named.items()
    }
    columns = list(dict.fromkeys(key[1:] for key in speeds))
    rows = [["draft length", *(f"W {window}, N {level}" for window, level in columns)]]
    for length in dict.fromkeys(key[0] for key in speeds):
        rows.append([str(length), *(f"{speeds[(length, *column)]:.2f}x" for column in columns)])
    spread = stdev(speeds.values()) if len(speeds) > 1 else 0.0
    return f"{markdown_table(rows)}\n\nStandard deviation of the speed-up: {spread:.2f}; the paper's: 0.04."


@measured("ouroboros/lengths")
def lengths_table(report: Report) -> str:
    """Table 14: speed-up by generation length."""
    named = named_rows(report)
    marks = list(named["plain"]["lengths"])
    rows = [["", *(f"up to {mark}" for mark in marks), *(f"paper: {n}" for n in (64, 128, 256, 512))]]  # fmt: skip
    for name, one in named.items():
        if name == "plain":
            continue
        ours = [over(one["lengths"][mark], named["plain"]["lengths"][mark]) for mark in marks]
        theirs = [f"{speed:.2f}x" for speed in THEIR_LENGTHS.get(name, ())] or [""] * 4
        rows.append([name, *ours, *theirs])
    return markdown_table(rows)


@measured("ouroboros/locality")
def locality_table(report: Report) -> str:
    """Table 16: orders of texts of several tasks, phrases kept or not."""
    named = named_rows(report)
    columns = {
        "": "{name}".format_map,
        "over plain": lambda one: over(one, named["plain"]),
        "tokens per pass": "{tokens_per_pass:.2f}".format_map,
        "draft passes per pass": draft_passes,
        "over cold start": lambda one: over(one, named["cold start"]),
        "paper: over cold start": of_paper(THEIR_LOCALITY, "cold start"),
    }
    return listed((named[name] for name in THEIR_LOCALITY), columns)


@measured("ouroboros/simulation")
def crossings_table(report: Report) -> str:
    """The plot, and the ratios at which one method beats another."""
    names = list(report["simulations"][0]["ahead"])
    rows = [["acceptance, rows of a pass, task", *names]]
    for one in report["simulations"]:
        label = f"{one['acceptance']}, {one['rows']}, {one['task'].replace('_', ' ')}"
        ends = report["ratios"][0], report["ratios"][-1]
        rows.append([label, *(_stretches(one["ahead"][name], *ends) for name in names)])
    ratio = f"The ratio here is {report['cost_ratio']:.2f}."
    return f"{PICTURE}\n\n{markdown_table(rows)}\n\n{ratio}"


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


STUDIES = ("fixed", "planned", "published", "copy", "tradeoff", "phrases", "others", "temperatures", "sensitivity", "lengths", "locality")  # fmt: skip


def texts_table() -> str:
    """How many texts were compared with plain decoding's, and how many differ."""
    rows = [["study", "texts compared", "different", "largest gap where they part"]]
    for study in STUDIES:
        found = report(f"ouroboros/{study}-{SMALL}")
        gaps = [one["gap"] for one in found["different"] if one["gap"] is not None]
        gap = f"{max(gaps):.1e}" if gaps else ""
        rows.append([study, str(found["compared_texts"]), str(found["different_texts"]), gap])
    return markdown_table(rows)


@measured("memory")
def memory_table(report: Report) -> str:
    """Memory over prompts in a row."""
    marks = report["marks"]
    rows = [["", *(f"{mark} prompts: MB, tensors, phrases" for mark in marks)]]
    for one in report["methods"]:
        cells = [
            f"{(point['resident_bytes'] or 0) / 1e6:,.0f}, {point['tensors']}, {point['phrases']}"
            for point in one["points"]
        ]
        rows.append([f"`{one['method']}`", *cells])
    return markdown_table(rows)


OUROBOROS: Blocks = {
    "parts-fixed": measured("ouroboros/fixed")(parts),
    "parts-planned": measured("ouroboros/planned")(parts),
    "parts-copy": measured("ouroboros/copy")(parts),
    "parts-copy-large": measured("ouroboros/copy", model=LARGE)(parts),
    "tasks-copy": measured("ouroboros/copy")(by_task),
    "tasks-copy-large": measured("ouroboros/copy", model=LARGE)(by_task),
    "efficiency": efficiency_table,
    "tasks": tasks_table,
    "sampling": sampling_table,
    "sensitivity": sensitivity_table,
    "lengths": lengths_table,
    "locality": locality_table,
    "tradeoff": tradeoff_table,
    "paying": paying_table,
    "weights": weights_table,
    "parts-planned-published": measured("ouroboros/published")(parts),
    "parts-planned-large": measured("ouroboros/planned", model=LARGE)(parts),
    "tasks-planned-large": measured("ouroboros/planned", model=LARGE)(by_task),
    "tasks-planned-published": measured("ouroboros/published")(by_task),
    "parts-planned-floats": measured("ouroboros/floats", model=LARGE)(parts),
    "tasks-planned-floats": measured("ouroboros/floats", model=LARGE)(by_task),
    "phrases": phrases_table,
    "others": others_table,
    "crossings": crossings_table,
    "texts": texts_table,
    "memory": memory_table,
}
