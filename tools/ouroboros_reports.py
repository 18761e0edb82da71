"""What the tables for Ouroboros have in common: result files, rows by name, ratios."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from paceline.bench.metrics import speedup_interval

RESULTS = Path(__file__).parent.parent / "benchmarks/results"
MODEL, LARGE = "smollm2-135m", "qwen2.5-coder-1.5b"
WHOLE = "+ history"

Report = dict[str, Any]
Row = Mapping[str, Any]


def measured(
    *studies: str, model: str = MODEL
) -> Callable[[Callable[..., str]], Callable[[], str]]:
    """Decorate a table of these result files."""

    def of(table: Callable[..., str]) -> Callable[[], str]:
        @wraps(table)
        def made() -> str:
            paths = (RESULTS / f"{study}-{model}.json" for study in studies)
            return table(*(json.loads(path.read_text("utf-8")) for path in paths))

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


def number(value: float | None) -> str:
    """With one decimal; empty for None."""
    return "" if value is None else f"{value:.1f}"


def head(*names: str) -> list[list[str]]:
    """A table that has only its first row."""
    return [list(names)]
