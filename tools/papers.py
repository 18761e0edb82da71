"""What tables are made from and with: result files, papers' figures, whose sources papers.json
names, and two layouts."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from paceline.bench.entries import Entry, LeftOut
from paceline.bench.metrics import Summary, summarise
from paceline.bench.results import read_results
from paceline.tables import markdown_table

ROOT = Path(__file__).parent.parent
RESULTS, PARTS = ROOT / "benchmarks/results", ROOT / "src/paceline/data"
SMALL, LARGE = "smollm2-135m", "qwen2.5-coder-1.5b"

Cell = str | Callable[[Any], str]
"""What makes a cell of a record: a format such as "{0.speedup:.2f}x", or a function."""
Columns = Mapping[str, Cell]
"""Heading -> cell."""
Cells = dict[tuple[str, Any], str]
"""By row and column. Columns are headings, or pairs, whose first part tells equal ones apart."""
Run = tuple[dict[str, Any], Summary]
"""The description of a run of `paceline bench`, and its summary."""


@cache
def figures(paper: str, table: str) -> dict[str, Any]:
    """The rows of a paper's table, by label. Raises KeyError for an unknown paper or table."""
    papers = json.loads(Path(__file__).with_name("papers.json").read_text("utf-8"))
    found: dict[str, Any] = papers[paper]["tables"][table]["rows"]
    return found


@cache
def orders() -> dict[str, Any]:
    """What pages.toml says: tables by page, and what they share."""
    return tomllib.loads(Path(__file__).with_name("pages.toml").read_text(encoding="utf-8"))


@cache
def report(name: str) -> dict[str, Any]:
    """A result file, by its path without the ending."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def trained(method: str) -> dict[str, dict[str, Any]]:
    """The training records of the parts in the package, by model."""
    paths = sorted((PARTS / method).glob("*/training.json"))
    return {path.parent.name: json.loads(path.read_text("utf-8")) for path in paths}


def size_of(method: str, model: str) -> int:
    """Bytes of such parts."""
    return (PARTS / method / model / "model.safetensors").stat().st_size


@cache
def entries(*names: str) -> tuple[dict[str, Any], list[Entry | LeftOut]]:
    """The first run's description, and the trials of all of them."""
    files = [read_results(RESULTS / f"{name}.jsonl") for name in names]
    return files[0][0]["run"], [line for _, lines in files for line in lines]


@cache
def found(*names: str) -> Run:
    """The runs of these files, taken as one."""
    run, lines = entries(*names)
    return run, summarise(lines)


def listed(
    records: Iterable[Any], columns: Columns, left: int = 1, more: Sequence[Sequence[str]] = ()
) -> str:
    """A row per record; then the rows `more`."""
    rows = ([made(cell, one) for cell in columns.values()] for one in records)
    return markdown_table([[*columns], *rows, *more], left)


def crossed(corner: str, cells: Cells, left: int = 1) -> str:
    """Rows and columns in the order in which cells name them; other cells are empty.

    corner: heading of the rows' names; "file" and "" stand over tasks, shown without underscores.
    """
    rows, columns = (dict.fromkeys(key[side] for key in cells) for side in (0, 1))
    lines = [[corner, *(each if isinstance(each, str) else each[-1] for each in columns)]]
    for row in rows:
        shown = row.replace("_", " ") if corner in ("file", "") else row
        lines.append([shown, *(cells.get((row, column), "") for column in columns)])
    return markdown_table(lines, left)


class _Cells(Formatter):
    """Numbers may be scaled: "{0[seconds]:*1e3 .0f} ms". None is nothing."""

    def format_field(self, value: Any, spec: str) -> str:
        factor, _, spec = spec.rpartition(" ")
        if value is None:
            return ""
        return format(value * float(factor[1:]) if factor else value, spec)


def made(cell: Cell, record: Any) -> str:
    """A cell's text."""
    return _Cells().format(cell, record) if isinstance(cell, str) else cell(record)


def rows(name: str, *keys: str) -> Iterator[dict[str, Any]]:
    """Records in a result file, under these keys; with their "name", if they have any."""
    found: Any = report(name)
    for key in keys:
        found = found[key]
    yield from found if isinstance(found, list) else ({"name": k, **v} for k, v in found.items())
