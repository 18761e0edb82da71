"""Tables of docs/paper-ouroboros.md: our figures beside the paper's (Zhao et al. 2024, arXiv
2402.13720)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from statistics import stdev
from typing import Any

from papers import LARGE, SMALL, Blocks, Cell, Columns, crossed, figures, listed, report

from paceline.bench.text_times import speedup_interval

Row = Mapping[str, Any]
"""A contender's figures."""
Rows = dict[str, Row]

WHOLE = "+ history"
METHODS = ("speculative", "lookahead", "ouroboros")
LENGTH = "{0[tokens_per_pass]:.2f}"


def rows_of(study: str, model: str = SMALL, temperature: float = 0.0) -> Rows:
    """Contenders by name; the whole of Ouroboros also as "ouroboros"."""
    contenders = report(f"ouroboros/{study}-{model}")["contenders"]
    found = {one["name"]: one for one in contenders if one["temperature"] == temperature}
    return {**found, "ouroboros": found[WHOLE]} if WHOLE in found else found


def over(one: Row, other: Row) -> str:
    """How many times faster one is than the other."""
    return f"{one['tokens_per_second'] / other['tokens_per_second']:.2f}x"


def compared(other: Row) -> Cell:
    """The speed-up over another contender, with its interval if the times of texts were kept."""

    def cell(one: Row) -> str:
        found = over(one, other)
        if one is other or "texts" not in one or "texts" not in other:
            return found
        pairs = [(*one["texts"][text], *other["texts"][text]) for text in other["texts"]]
        low, high = speedup_interval(pairs)
        return f"{found} ({low:.2f} to {high:.2f})"

    return cell


def of_paper(table: str, base: str) -> Columns:
    """The paper's speed-ups over a contender; empty for what its table does not have."""
    rows = figures("ouroboros", table)
    speeds = {name: row[0] if isinstance(row, list) else row for name, row in rows.items()}

    def cell(one: Row) -> str:
        return f"{speeds[one['name']] / speeds[base]:.2f}x" if one["name"] in speeds else ""

    return {f"paper: over {base.replace('ouroboros', 'Ouroboros')}": cell}


def number(key: str) -> Cell:
    """A figure with one decimal; empty for None."""
    return lambda one: "" if one[key] is None else f"{one[key]:.1f}"


def draft_passes(one: Row) -> str:
    """Per pass of the target."""
    return f"{one['draft_passes'] / one['passes']:.2f}"


def parts(study: str, model: str = SMALL) -> Callable[[], str]:
    """Table 4: part by part."""

    def made() -> str:
        named = rows_of(study, model)
        columns: Columns = {
            "": "{0[name]}",
            "over plain": compared(named["plain"]),
            "tokens per pass": LENGTH,
            "draft passes per pass": draft_passes,
            "ms per draft pass": number("ms_per_draft_pass"),
            "ms per pass": number("ms_per_pass"),
            "time drafting": "{0[shares][draft]:.0%}",
            "over speculative": compared(named["speculative"]),
            **of_paper("4", "speculative"),
        }
        return listed((one for name, one in named.items() if name != "ouroboros"), columns)

    return made


def by_task(shown: Iterable[str], *studies: str, model: str = SMALL) -> Callable[[], str]:
    """Speed-up over plain decoding by task; with several studies, they stand in the headings."""

    def made() -> str:
        blocks = []
        for study in studies:
            named = rows_of(study, model)
            plain = named["plain"]["tasks"]
            for name in (one for one in shown if one in named):
                own = {task: (one, plain[task]) for task, one in named[name]["tasks"].items()}
                heading = f"{name}, {study}" if len(studies) > 1 else name
                blocks.append(({heading: lambda pair: over(*pair)}, own))
        return crossed("", plain, blocks)

    return made


def efficiency_table() -> str:
    """Table 12: tokens per pass of the target, ours and the paper's."""
    named, paper = rows_of("fixed"), figures("ouroboros", "12")
    blocks: list[tuple[Columns, Mapping[str, Any]]] = []
    for place, name in enumerate(METHODS):
        blocks.append(({name: LENGTH}, named[name]["tasks"]))
        blocks.append(({f"{name}, paper": f"{{0[{place}]:.2f}}"}, paper))
    return crossed("", paper, blocks)


def sampling_table() -> str:
    """Table 3: speed-up at three temperatures."""
    blocks: list[tuple[Columns, Mapping[str, Any]]] = []
    studies = {0.0: "fixed", 0.5: "temperatures", 1.0: "temperatures"}
    for place, (temperature, study) in enumerate(studies.items()):
        named, ours, theirs = rows_of(study, temperature=temperature), {}, {}
        for task, (plain, *speeds) in figures("ouroboros", "3").items():
            for name, speed in zip(METHODS, speeds):
                label = f"{task}, {name}"
                ours[label] = named[name]["tasks"][task], named["plain"]["tasks"][task]
                theirs[label] = speed[place] / plain[place]
        blocks.append(({f"T = {temperature}": lambda pair: over(*pair)}, ours))
        blocks.append(({f"T = {temperature}, paper": "{0:.2f}x"}, theirs))
    return crossed("", ours, blocks)


def _settings(named: Rows, last: bool = True) -> tuple[dict[str, dict[str, Row]], list[str]]:
    """Contenders named "FIRST, SECOND" by second and first part; and all first parts."""
    found: dict[str, dict[str, Row]] = {}
    for name, one in named.items():
        first, _, second = name.rpartition(", ") if last else name.partition(", ")
        if first and second:
            found.setdefault(second, {})[first] = one
    return found, list(dict.fromkeys(first for own in found.values() for first in own))


def sensitivity_table() -> str:
    """Table 9: speed-up by draft length, window and level."""
    named = rows_of("sensitivity")
    plain = named["plain"]
    found, lengths = _settings(named, last=False)
    blocks = []
    for setting, own in found.items():
        window, level = setting.split(", ")
        blocks.append(({f"W {window}, N {level}": lambda one: over(one, plain)}, own))
    speeds = [one["tokens_per_second"] / plain["tokens_per_second"] for own in found.values() for one in own.values()]  # fmt: skip
    return (
        f"{crossed('draft length', lengths, blocks)}\n\n"
        f"Standard deviation of the speed-up: {stdev(speeds):.2f}; the paper's: 0.04."
    )


def tradeoff_table() -> str:
    """Figure 1: speed-up and tokens per pass by draft model and length."""
    named = rows_of("tradeoff")
    found, drafts = _settings(named)
    blocks: list[tuple[Columns, Mapping[str, Any]]] = [
        ({"ms per draft pass": number("ms_per_draft_pass")}, found["16"])
    ]
    for length, own in found.items():
        cell = {
            f"length {length}": lambda one: f"{over(one, named['plain'])}, {LENGTH.format(one)}"
        }
        blocks.append((cell, own))
    return crossed("draft model", drafts, blocks)


def weights_table() -> str:
    """Speculative decoding by the weights of the draft model."""
    named = rows_of("weights")
    found, _ = _settings(named)
    blocks = []
    for how, own in found.items():
        columns = {
            f"{how}: over plain": compared(named["plain"]),
            "tokens per pass": LENGTH,
            "ms per draft pass": "{0[ms_per_draft_pass]:.2f}",
        }
        blocks.append((columns, {f"`{kind}`": one for kind, one in own.items()}))
    return crossed("weights of the draft model", blocks[0][1], blocks)


def lengths_table() -> str:
    """Table 14: speed-up by generation length."""
    named, paper = rows_of("lengths"), figures("ouroboros", "14")
    plain = named.pop("plain")["lengths"]
    blocks: list[tuple[Columns, Mapping[str, Any]]] = []
    for mark, base in plain.items():
        own = {name: (one["lengths"][mark], base) for name, one in named.items()}
        blocks.append(({f"up to {mark}": lambda pair: over(*pair)}, own))
    for place, length in enumerate((64, 128, 256, 512)):
        blocks.append(({f"paper: {length}": f"{{0[{place}]:.2f}}x"}, paper))
    return crossed("", named, blocks)


def locality_table() -> str:
    """Table 16: orders of texts of several tasks, phrases kept or not."""
    named = rows_of("locality")
    columns: Columns = {
        "": "{0[name]}",
        "over plain": lambda one: over(one, named["plain"]),
        "tokens per pass": LENGTH,
        "draft passes per pass": draft_passes,
        "over cold start": lambda one: over(one, named["cold start"]),
        **of_paper("16", "cold start"),
    }
    return listed((named[name] for name in figures("ouroboros", "16")), columns)


def phrases_table() -> str:
    """Figure 6: how many phrases lengthen a draft."""
    named = rows_of("phrases")

    def rows_read(one: Row) -> str:
        read = sum(int(width) * count for width, count in one["widths"].items())
        return f"{read / one['passes']:.1f}"

    columns: Columns = {
        "over plain": compared(named["plain"]),
        "over speculative": compared(named["speculative"]),
        "tokens per pass": LENGTH,
        "rows per pass": rows_read,
    }
    counted = {re.sub(r"(\d+) phrases", r"K = \1", name): one for name, one in named.items()}
    return crossed("", counted, [(columns, counted)])


def others_table() -> str:
    """Tables 5 and 13: EAGLE and a cascade."""
    named = rows_of("others")
    plain = named["plain"]

    def on(task: str) -> Cell:
        return lambda one: over(one["tasks"][task], plain["tasks"][task])

    columns: Columns = {
        "": "{0[name]}",
        "over plain": compared(plain),
        "tokens per pass": LENGTH,
        **{task.replace("_", " "): on(task) for task in plain["tasks"]},
        **of_paper("13", "speculative"),
        **of_paper("5", "ouroboros"),
    }
    return listed(named.values(), columns)


_COPIED = "anpd inside, lengthened by phrases"
PAYING = {
    "default, float32, trained": ("planned", SMALL, "speculative", WHOLE),
    "default, 4 bits, trained": ("published", SMALL, "speculative", WHOLE),
    "default, float32, 4-bit copy": ("copy", SMALL, "speculative", _COPIED),
    "default, float32, 8-bit copy": ("tradeoff", SMALL, "8-bit copy, 8", None),
    "1.5B, bfloat16, 4-bit copy": ("copy", LARGE, "speculative", _COPIED),
    "1.5B, 4 bits, trained": ("planned", LARGE, "speculative", WHOLE),
    "1.5B, float32, trained": ("floats", LARGE, "speculative", WHOLE),
}
"""Target and draft model -> study, its model, and its contenders for speculative decoding and
Ouroboros."""


def share_right(one: Row) -> float:
    """The share of right guesses with which as many in a row bring as many tokens per pass."""
    guesses, low, high = one["draft_passes"] / one["passes"], 0.0, 1 - 1e-9
    while high - low > 1e-6:
        middle = (low + high) / 2
        few = (1 - middle ** (guesses + 1)) / (1 - middle) < one["tokens_per_pass"]
        low, high = (middle, high) if few else (low, middle)
    return low


def best_by_equation(cost: float, right: float) -> float:
    """The speed-up of the best draft length with free rows: the paper's equation for speculative
    decoding."""
    return max((1 - right ** (n + 1)) / ((1 - right) * (1 + n * cost)) for n in range(33))


def paying_table() -> str:
    """Which draft model makes which method pay: the paper's equation beside measurements."""
    found = {}
    for label, (study, model, speculative, ouroboros) in PAYING.items():
        named = rows_of(study, model)
        one, plain = named[speculative], named["plain"]
        cost, right = one["ms_per_draft_pass"] / plain["ms_per_pass"], share_right(one)
        measured = over(one, plain), over(named[ouroboros], plain) if ouroboros else ""
        found[label] = cost, right, best_by_equation(cost, right), *measured
    columns = {
        "draft pass, in plain passes": "{0[0]:.2f}",
        "right": "{0[1]:.2f}",
        "speculative, by the equation": "{0[2]:.2f}x",
        "speculative": "{0[3]}",
        "Ouroboros": "{0[4]}",
    }
    return crossed("model, draft model", found, [(columns, found)])


def crossings_table() -> str:
    """The plot, and the ratios at which one method beats another."""
    found = report(f"ouroboros/simulation-{SMALL}")
    first, *_, last = found["ratios"]

    def stretch(begin: float, end: float) -> str:
        if begin == first:
            return "always" if end == last else f"up to {end:.2f}"
        return f"from {begin:.2f} on" if end == last else f"{begin:.2f} to {end:.2f}"

    def ahead(name: str) -> Cell:
        return lambda one: ", ".join(stretch(*each) for each in one["ahead"][name]) or "never"

    runs = {f"{one['acceptance']}, {one['rows']}, {one['task'].replace('_', ' ')}": one for one in found["simulations"]}  # fmt: skip
    columns = {name: ahead(name) for name in found["simulations"][0]["ahead"]}
    return (
        "![speed-up by cost ratio](images/ouroboros-simulation.png)\n\n"
        f"{crossed('acceptance, rows of a pass, task', runs, [(columns, runs)])}\n\n"
        f"The ratio here is {found['cost_ratio']:.2f}."
    )


STUDIES = ("fixed", "planned", "published", "copy", "tradeoff", "phrases", "others", "temperatures", "sensitivity", "lengths", "locality")  # fmt: skip


def texts_table() -> str:
    """How many texts were compared with plain decoding's, and how many differ."""

    def gap(one: Row) -> str:
        gaps = [each["gap"] for each in one["different"] if each["gap"] is not None]
        return f"{max(gaps):.1e}" if gaps else ""

    columns: Columns = {
        "study": "{0[study]}",
        "texts compared": "{0[compared_texts]}",
        "different": "{0[different_texts]}",
        "largest gap where they part": gap,
    }
    return listed((report(f"ouroboros/{study}-{SMALL}") for study in STUDIES), columns)


def memory_table() -> str:
    """Memory over prompts in a row."""

    def at(place: int) -> Cell:
        def cell(one: Row) -> str:
            point = one["points"][place]
            return f"{point['resident_bytes'] / 1e6:,.0f}, {point['tensors']}, {point['phrases']}"

        return cell

    found = report(f"memory-{SMALL}")
    marks = enumerate(found["marks"])
    columns = {f"{mark} prompts: MB, tensors, phrases": at(place) for place, mark in marks}
    return listed(found["methods"], {"": "`{0[method]}`", **columns})


_OF_COPY = ("anpd", "speculative", "speculative, anpd inside", WHOLE, _COPIED)
_OF_TRAINED = ("speculative", "speculative, runners-up", WHOLE)
OUROBOROS: Blocks = {
    "parts-fixed": parts("fixed"),
    "parts-planned": parts("planned"),
    "parts-copy": parts("copy"),
    "parts-copy-large": parts("copy", LARGE),
    "tasks-copy": by_task(_OF_COPY, "copy"),
    "tasks-copy-large": by_task(_OF_COPY, "copy", model=LARGE),
    "efficiency": efficiency_table,
    "tasks": by_task(METHODS, "fixed", "planned"),
    "sampling": sampling_table,
    "sensitivity": sensitivity_table,
    "lengths": lengths_table,
    "locality": locality_table,
    "tradeoff": tradeoff_table,
    "paying": paying_table,
    "weights": weights_table,
    "parts-planned-published": parts("published"),
    "parts-planned-large": parts("planned", LARGE),
    "tasks-planned-large": by_task(_OF_TRAINED, "planned", model=LARGE),
    "tasks-planned-published": by_task(_OF_TRAINED, "published"),
    "parts-planned-floats": parts("floats", LARGE),
    "tasks-planned-floats": by_task(_OF_TRAINED, "floats", model=LARGE),
    "phrases": phrases_table,
    "others": others_table,
    "crossings": crossings_table,
    "texts": texts_table,
    "memory": memory_table,
}
