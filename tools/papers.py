"""What tables are made from: our result files, and papers' figures, whose sources papers.json
names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from paceline.tables import markdown_table

FILE = Path(__file__).with_name("papers.json")
RESULTS = Path(__file__).parent.parent / "benchmarks/results"
SMALL, LARGE = "smollm2-135m", "qwen2.5-coder-1.5b"

Blocks = dict[str, Callable[[], str]]
"""The generated blocks of a page, by name."""


@cache
def figures(paper: str, table: str) -> dict[str, Any]:
    """The rows of a paper's table, by label. Raises KeyError for an unknown paper or table."""
    papers = json.loads(FILE.read_text(encoding="utf-8"))
    found: dict[str, Any] = papers[paper]["tables"][table]["rows"]
    return found


def report(name: str) -> dict[str, Any]:
    """A result file, by its path without the ending."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def listed(
    records: Iterable[Any],
    columns: Mapping[str, Callable[[Any], str]],
    left: int = 1,
    more: Sequence[Sequence[str]] = (),
) -> str:
    """A row per record, heading -> its cell (`"{key}".format_map` for a value as it is); then the
    rows `more`."""
    rows = ([make(one) for make in columns.values()] for one in records)
    return markdown_table([[*columns], *rows, *more], left)
