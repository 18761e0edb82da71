"""An ablation's tables and picture, written beside its results, as blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from paceline.bench.report.blocks import Block, Paragraph, Picture
from paceline.bench.report.folder import Ablation
from paceline.tables import Table


def title(ablation: Ablation) -> str:
    """The heading of its tables, which says what it shows; "" if there is none."""
    first = ablation.tables.partition("\n")[0]
    return first.lstrip("# ") if first.startswith("# ") else ""


def blocks(ablation: Ablation) -> list[Block]:
    """The picture, then the tables."""
    found: list[Block] = [Picture(path) for path in ablation.pictures[:1]]
    found += _tables(ablation.tables)
    return found or [Paragraph("There is no table or plot next to the results.")]


def _tables(markdown: str) -> Iterator[Block]:
    """Yield tables, each captioned by the heading before it; other lines are paragraphs."""
    caption = ""
    for is_row, lines in groupby(markdown.splitlines(), key=lambda line: line.startswith("|")):
        if is_row:
            headings, *rows = map(_cells, lines)  # the second row holds only dashes
            yield Table(caption, headings, rows[1:])
            continue
        for line in filter(str.strip, lines):
            if line.startswith("#"):
                caption = line.lstrip("# ")
            else:
                yield Paragraph(line)


def _cells(row: str) -> list[str]:
    """ "| `a` | 1 |"  ->  "a", "1" """
    parts = re.split(r"(?<!\\)\|", row.strip().strip("|"))
    return [part.strip().strip("`").replace("\\|", "|") for part in parts]
