"""A report as Markdown, with plots as separate files."""

from __future__ import annotations

import re

from paceline.bench.report.blocks import Block, Document, Listing, Picture, Plot
from paceline.tables import Table, markdown_table

PLOTS = "plots"
"""The folder for plots, next to the report."""


def markdown(document: Document) -> str:
    """Render the whole report."""
    parts = [f"# {_plain(document.title)}", _plain(document.introduction)]
    for chapter in document.chapters:
        parts.append(f"## {_plain(chapter.title)}")
        subtitle = f" {_plain(chapter.subtitle)}." if chapter.subtitle else ""
        parts.append(f"From `{chapter.source.replace('`', ' ')}`.{subtitle}")
        for section in chapter.sections:
            parts.append(f"### {_plain(section.title)}")
            parts += map(_block, section.blocks)
    parts += ["## Words", _table(document.words)]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case str():
            return _plain(block)
        case Listing():
            return _fenced(block.text)
        case Table():
            return _table(block)
        case Plot():
            return f"![{_plain(block.caption)}]({PLOTS}/{block.name}.svg)"
        case Picture():
            return f"![{_plain(block.path.name)}](<{block.path.name}>)"
        case list():
            return "\n".join(
                f"- **{_plain(one.method)}**, {one.speedup.text}: {_plain(' '.join(one.sentences))}"
                for one in block
            )


def _table(table: Table) -> str:
    rows = [[_plain(str(cell)) for cell in row] for row in (table.headings, *table.rows)]
    lines = markdown_table(rows, table.left)
    caption = f"**{_plain(table.caption)}**" if table.caption else ""
    return "\n\n".join(filter(None, [caption, lines, _plain(table.note)]))


def _plain(text: str) -> str:
    """Escape all markup and join the lines."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"([\\`*|\[\]~$])", r"\\\1", text)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def _fenced(text: str) -> str:
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
