"""Tables of Ouroboros part by part, and of its studies with a quantised copy."""

from __future__ import annotations

from collections.abc import Callable

from ouroboros_reports import (
    WHOLE,
    Report,
    Row,
    compared,
    draft_passes,
    measured,
    named_rows,
    number,
    of_paper,
    over,
)
from papers import LARGE, SMALL, figures, listed, report

from paceline.tables import markdown_table

THEIR_PARTS, THEIR_CASCADE = figures("ouroboros", "4"), figures("ouroboros", "13")
THEIR_EAGLE = {name: speed for name, (speed, _) in figures("ouroboros", "5").items()}
_WITH_COPY = "anpd inside, lengthened by phrases"
PAYING = (
    ("default, float32, trained", "planned", SMALL, "speculative", WHOLE),
    ("default, 4 bits, trained", "published", SMALL, "speculative", WHOLE),
    ("default, float32, 4-bit copy", "copy", SMALL, "speculative", _WITH_COPY),
    ("default, float32, 8-bit copy", "tradeoff", SMALL, "8-bit copy, 8", ""),
    ("1.5B, bfloat16, 4-bit copy", "copy", LARGE, "speculative", _WITH_COPY),
    ("1.5B, 4 bits, trained", "planned", LARGE, "speculative", WHOLE),
    ("1.5B, float32, trained", "floats", LARGE, "speculative", WHOLE),
)
"""Target and draft model; study, its model, and its contenders for speculative decoding and
Ouroboros."""
COPY_METHODS = (
    "anpd",
    "speculative",
    "speculative, runners-up",
    "speculative, anpd inside",
    WHOLE,
    _WITH_COPY,
)


def parts(report: Report) -> str:
    """Table 4: part by part."""
    named = named_rows(report)
    plain, speculative = named["plain"], named.get("speculative")
    columns = {
        "": "{name}".format_map,
        "over plain": lambda one: compared(one, plain),
        "tokens per pass": "{tokens_per_pass:.2f}".format_map,
        "draft passes per pass": draft_passes,
        "ms per draft pass": lambda one: number(one["ms_per_draft_pass"]),
        "ms per pass": lambda one: number(one["ms_per_pass"]),
        "time drafting": "{shares[draft]:.0%}".format_map,
        "over speculative": lambda one: compared(one, speculative) if speculative else "",
        "paper: over speculative": of_paper(THEIR_PARTS, "speculative"),
    }
    return listed(report["contenders"], columns)


def by_task(report: Report) -> str:
    """Speed-up over plain decoding by task."""
    named = named_rows(report)
    plain = named["plain"]["tasks"]
    shown = [name for name in COPY_METHODS if name in named]
    rows = [["", *shown]]
    for task in plain:
        cells = [over(named[name]["tasks"][task], plain[task]) for name in shown]
        rows.append([task.replace("_", " "), *cells])
    return markdown_table(rows)


@measured("ouroboros/weights")
def weights_table(report: Report) -> str:
    """Speculative decoding by the weights of the draft model."""
    named = named_rows(report)
    plain = named.pop("plain")
    rows = [
        ["weights of the draft model", "fixed: over plain", "tokens per pass", "ms per draft pass",
         "planned: over plain", "tokens per pass", "ms per draft pass"],
    ]  # fmt: skip
    for kind in dict.fromkeys(name.rsplit(", ", 1)[0] for name in named):
        cells = [f"`{kind}`"]
        for one in (named[f"{kind}, fixed"], named[f"{kind}, planned"]):
            found = f"{one['tokens_per_pass']:.2f}", f"{one['ms_per_draft_pass']:.2f}"
            cells += [compared(one, plain), *found]
        rows.append(cells)
    return markdown_table(rows)


@measured("ouroboros/tradeoff")
def tradeoff_table(report: Report) -> str:
    """Figure 1: speed-up and tokens per pass by draft model and length."""
    named = named_rows(report)
    plain = named.pop("plain")
    names = [name.rsplit(", ", 1) for name in named]
    lengths = list(dict.fromkeys(length for _, length in names))
    rows = [["draft model", "ms per draft pass", *(f"length {length}" for length in lengths)]]
    for draft in dict.fromkeys(draft for draft, _ in names):
        found = [named[f"{draft}, {length}"] for length in lengths]
        cells = [f"{over(one, plain)}, {one['tokens_per_pass']:.2f}" for one in found]
        rows.append([draft, number(found[-1]["ms_per_draft_pass"]), *cells])
    return markdown_table(rows)


def share_right(guesses: float, tokens: float) -> float:
    """The share of right guesses with which `guesses` in a row bring `tokens` per pass."""
    low, high = 0.0, 1 - 1e-9
    while high - low > 1e-6:
        middle = (low + high) / 2
        few = (1 - middle ** (guesses + 1)) / (1 - middle) < tokens
        low, high = (middle, high) if few else (low, middle)
    return low


def best_by_equation(ratio: float, right: float) -> float:
    """The speed-up of the best draft length with free rows: the paper's equation for speculative
    decoding."""
    return max((1 - right ** (n + 1)) / ((1 - right) * (1 + n * ratio)) for n in range(33))


def paying_table() -> str:
    """Which draft model makes which method pay: the paper's equation beside measurements."""
    rows = [["model, draft model", "draft pass, in plain passes", "right", "speculative, by the equation", "speculative", "Ouroboros"]]  # fmt: skip
    for label, study, model, speculative, ouroboros in PAYING:
        named = named_rows(report(f"ouroboros/{study}-{model}"))
        one, plain = named[speculative], named["plain"]
        ratio = one["ms_per_draft_pass"] / plain["ms_per_pass"]
        right = share_right(one["draft_passes"] / one["passes"], one["tokens_per_pass"])
        measured = [over(named[name], plain) if name else "" for name in (speculative, ouroboros)]
        equation = f"{best_by_equation(ratio, right):.2f}x"
        rows.append([label, f"{ratio:.2f}", f"{right:.2f}", equation, *measured])
    return markdown_table(rows)


@measured("ouroboros/phrases")
def phrases_table(report: Report) -> str:
    """Figure 6: how many phrases lengthen a draft."""
    named = named_rows(report)

    def label(one: Row) -> str:
        count = one["name"].removesuffix(" phrases")
        return one["name"] if count == one["name"] else f"K = {count}"

    def rows_read(one: Row) -> str:
        read = sum(int(width) * count for width, count in one["widths"].items())
        return f"{read / one['passes']:.1f}"

    columns = {
        "": label,
        "over plain": lambda one: compared(one, named["plain"]),
        "over speculative": lambda one: compared(one, named["speculative"]),
        "tokens per pass": "{tokens_per_pass:.2f}".format_map,
        "rows per pass": rows_read,
    }
    return listed(named.values(), columns)


@measured("ouroboros/others")
def others_table(report: Report) -> str:
    """Tables 5 and 13: EAGLE and a cascade."""
    named = named_rows(report)
    plain = named["plain"]

    def on(task: str) -> Callable[[Row], str]:
        return lambda one: over(one["tasks"][task], plain["tasks"][task])

    columns = {
        "": "{name}".format_map,
        "over plain": lambda one: compared(one, plain),
        "tokens per pass": "{tokens_per_pass:.2f}".format_map,
        **{task.replace("_", " "): on(task) for task in plain["tasks"]},
        "paper: over speculative": of_paper(THEIR_CASCADE, "speculative"),
        "paper: over Ouroboros": of_paper(THEIR_EAGLE, "ouroboros"),
    }
    return listed(named.values(), columns)
