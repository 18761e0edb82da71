"""Tables of docs/paper-ouroboros.md: our figures beside the paper's (Zhao et al. 2024, arXiv
2402.13720)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from statistics import stdev
from typing import Any

from papers import SMALL, Cell, Cells, crossed, figures, made, orders, report

from paceline.bench.text_times import speedup_interval

Row = Mapping[str, Any]
"""A contender's figures, in all, on a task or up to a length."""

WHOLE, COPIED = "+ history", "anpd inside, lengthened by phrases"
METHODS = ("speculative", "lookahead", "ouroboros")
OF_TASKS = (
    "anpd", "speculative", "speculative, runners-up", "the same, anpd inside",
    "speculative, anpd inside", WHOLE, COPIED,
)  # fmt: skip
"""In the tables by task, where they were measured."""
LENGTH = "{0[tokens_per_pass]:.2f}"


def rows_of(study: str, model: str = SMALL, temperature: float = 0.0) -> dict[str, Row]:
    """Contenders by name, each with all of them as "all"; Ouroboros as a whole is "ouroboros"."""
    contenders = report(f"ouroboros/{study}-{model}")["contenders"]
    found = {one["name"]: one for one in contenders if one["temperature"] == temperature}
    if WHOLE in found:
        found["ouroboros"] = found[WHOLE]
    return {name: {**one, "all": found} for name, one in found.items()}


def over(one: Row, other: Row) -> str:
    """How many times faster one is than the other."""
    return f"{one['tokens_per_second'] / other['tokens_per_second']:.2f}x"


def versus(name: str) -> Cell:
    """The speed-up over another contender, with its interval."""

    def cell(one: Row) -> str:
        other, texts = one["all"][name], one["texts"]
        low, high = speedup_interval([(*texts[key], *own) for key, own in other["texts"].items()])
        found = over(one, other)
        return found if one["name"] == name else f"{found} ({low:.2f} to {high:.2f})"

    return cell


def of_paper(table: str, base: str) -> Cell:
    """The paper's speed-up over a contender; empty if its table has no such row."""
    rows = figures("ouroboros", table)
    speeds = {name: row[0] if isinstance(row, list) else row for name, row in rows.items()}

    def cell(one: Row) -> str:
        return f"{speeds[one['name']] / speeds[base]:.2f}x" if one["name"] in speeds else ""

    return cell


def on(task: str) -> Cell:
    """The speed-up over plain decoding on a task."""
    return lambda one: over(one["tasks"][task], one["all"]["plain"]["tasks"][task])


def over_alone(name: str) -> Cell:
    """The speed-up over another contender, without its interval."""
    return lambda one: over(one, one["all"][name])


def draft_passes(one: Row) -> str:
    """Per pass of the target."""
    return f"{one['draft_passes'] / one['passes']:.2f}"


def rows_read(one: Row) -> str:
    """Per pass of the target."""
    read = sum(int(width) * count for width, count in one["widths"].items())
    return f"{read / one['passes']:.1f}"


def contenders(study: str, model: str = SMALL) -> Iterator[Row]:
    """Those of a study; of table 16's, the rows that it has."""
    named = rows_of(study, model)
    shown = figures("ouroboros", "16") if study == "locality" else named
    for name in shown:
        if name != "ouroboros" or WHOLE not in named:
            yield {**named[name], "label": re.sub(r"^(\d+) phrases", r"K = \1", name)}


def by_task(model: str, *studies: str) -> str:
    """Speed-up over plain decoding by task; with several studies, they stand in the headings."""
    cells = {}
    for study in studies:
        named = rows_of(study, model)
        for name in filter(named.__contains__, METHODS if len(studies) > 1 else OF_TASKS):
            heading = f"{name}, {study}" if len(studies) > 1 else name
            for task, plain in named["plain"]["tasks"].items():
                cells[task, heading] = over(named[name]["tasks"][task], plain)
    return crossed("", cells)


def efficiency() -> str:
    """Table 12: tokens per pass of the target, ours and the paper's."""
    named, cells = rows_of("fixed"), {}
    for task, paper in figures("ouroboros", "12").items():
        for name, theirs in zip(METHODS, paper):
            cells[task, name] = LENGTH.format(named[name]["tasks"][task])
            cells[task, f"{name}, paper"] = f"{theirs:.2f}"
    return crossed("", cells)


def sampling() -> str:
    """Table 3: speed-up at three temperatures."""
    studies = {0.0: "fixed", 0.5: "temperatures", 1.0: "temperatures"}
    cells = {}
    for task, (plain, *paper) in figures("ouroboros", "3").items():
        for place, (temperature, study) in enumerate(studies.items()):
            named = rows_of(study, temperature=temperature)
            for name, speeds in zip(METHODS, paper):
                row, column = f"{task}, {name}", f"T = {temperature}"
                cells[row, column] = over(*(named[one]["tasks"][task] for one in (name, "plain")))
                cells[row, f"{column}, paper"] = f"{speeds[place] / plain[place]:.2f}x"
    return crossed("", cells)


def sensitivity() -> str:
    """Table 9: speed-up by draft length, window and level."""
    named = rows_of("sensitivity")
    plain, cells, speeds = named.pop("plain"), {}, []
    for name, one in named.items():
        length, window, level = name.split(", ")
        cells[length, f"W {window}, N {level}"] = over(one, plain)
        speeds.append(one["tokens_per_second"] / plain["tokens_per_second"])
    return (
        f"{crossed('draft length', cells)}\n\n"
        f"Standard deviation of the speed-up: {stdev(speeds):.2f}; the paper's: 0.04."
    )


def tradeoff() -> str:
    """Figure 1: speed-up and tokens per pass by draft model and length."""
    named = rows_of("tradeoff")
    plain, cells = named.pop("plain"), {}
    for name, one in named.items():
        draft, length = name.rsplit(", ", 1)
        cells[draft, "ms per draft pass"] = f"{one['ms_per_draft_pass']:.1f}"  # the last length's
        cells[draft, f"length {length}"] = f"{over(one, plain)}, {LENGTH.format(one)}"
    return crossed("draft model", cells)


def weights() -> str:
    """Speculative decoding by the weights of the draft model."""
    named = rows_of("weights")
    cells: Cells = {}
    for name, one in named.items():
        kind, _, how = name.partition(", ")
        if how:
            cells[f"`{kind}`", f"{how}: over plain"] = made(versus("plain"), one)
            cells[f"`{kind}`", (how, "tokens per pass")] = LENGTH.format(one)
            cells[f"`{kind}`", (how, "ms per draft pass")] = f"{one['ms_per_draft_pass']:.2f}"
    return crossed("weights of the draft model", cells)


def lengths() -> str:
    """Table 14: speed-up by generation length."""
    named, cells = rows_of("lengths"), {}
    plain = named.pop("plain")["lengths"]
    for name, one in named.items():
        for mark, found in one["lengths"].items():
            cells[name, f"up to {mark}"] = over(found, plain[mark])
    for name, speeds in figures("ouroboros", "14").items():
        for length, speed in zip((64, 128, 256, 512), speeds):
            cells[name, f"paper: {length}"] = f"{speed:.2f}x"
    return crossed("", cells)


def paying() -> str:
    """Which draft model makes which method pay: the paper's equation beside measurements."""
    cells = {}
    for label, (study, model, speculative, ouroboros) in orders()["rows"]["paying"].items():
        named = rows_of(study, model)
        one, plain = named[speculative], named["plain"]
        cost, right = one["ms_per_draft_pass"] / plain["ms_per_pass"], _share_right(one)
        best = max((1 - right ** (n + 1)) / ((1 - right) * (1 + n * cost)) for n in range(33))
        cells[label, "draft pass, in plain passes"] = f"{cost:.2f}"
        cells[label, "right"] = f"{right:.2f}"
        cells[label, "speculative, by the equation"] = f"{best:.2f}x"
        cells[label, "speculative"] = over(one, plain)
        cells[label, "Ouroboros"] = over(named[ouroboros], plain) if ouroboros else ""
    return crossed("model, draft model", cells)


def _share_right(one: Row) -> float:
    """The share of right guesses with which as many in a row bring as many tokens per pass."""
    guesses, low, high = one["draft_passes"] / one["passes"], 0.0, 1 - 1e-9
    while high - low > 1e-6:
        middle = (low + high) / 2
        few = (1 - middle ** (guesses + 1)) / (1 - middle) < one["tokens_per_pass"]
        low, high = (middle, high) if few else (low, middle)
    return low


def texts_compared(*studies: str) -> Iterator[Row]:
    """How many texts were compared with plain decoding's, and how many differ."""
    for study in studies:
        found = report(f"ouroboros/{study}-{SMALL}")
        gaps = [one["logit_gap"] for one in found["different"] if one["logit_gap"] is not None]
        yield {**found, "gap": max(gaps, default=None)}
