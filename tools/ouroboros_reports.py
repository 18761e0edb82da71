"""What the tables for Ouroboros have in common: rows by name, and ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from papers import SMALL, report

from paceline.bench.text_times import speedup_interval

WHOLE = "+ history"

Report = dict[str, Any]
Row = Mapping[str, Any]


def measured(
    *studies: str, model: str = SMALL
) -> Callable[[Callable[..., str]], Callable[[], str]]:
    """Decorate a table of these result files."""

    def of(table: Callable[..., str]) -> Callable[[], str]:
        @wraps(table)
        def made() -> str:
            return table(*(report(f"{study}-{model}") for study in studies))

        return made

    return of


def named_rows(report: Report, temperature: float = 0.0) -> dict[str, Row]:
    """Contenders by name; the whole of Ouroboros also as "ouroboros"."""
    found = {one["name"]: one for one in report["contenders"] if one["temperature"] == temperature}
    return {**found, "ouroboros": found[WHOLE]} if WHOLE in found else found


def over(one: Row, other: Row) -> str:
    """How many times faster one is than the other."""
    return f"{one['tokens_per_second'] / other['tokens_per_second']:.2f}x"


def compared(one: Row, other: Row) -> str:
    """The speed-up over another, with its interval if the times of texts were kept."""
    found = over(one, other)
    if one is other or "texts" not in one or "texts" not in other:
        return found
    pairs = [(*one["texts"][text], *other["texts"][text]) for text in other["texts"]]
    low, high = speedup_interval(pairs)
    return f"{found} ({low:.2f} to {high:.2f})"


def of_paper(speeds: Mapping[str, float], base: str) -> Callable[[Row], str]:
    """What makes the cell of a paper's speed-up over `base`; empty if the paper has no such row."""

    def cell(one: Row) -> str:
        return f"{speeds[one['name']] / speeds[base]:.2f}x" if one["name"] in speeds else ""

    return cell


def number(value: float | None) -> str:
    """With one decimal; empty for None."""
    return "" if value is None else f"{value:.1f}"


def draft_passes(one: Row) -> str:
    """Per pass of the target."""
    return f"{one['draft_passes'] / one['passes']:.2f}"
