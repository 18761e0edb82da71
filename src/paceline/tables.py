"""Tables as data, written for a terminal or as Markdown; `bench/report` writes them as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable

T = TypeVar("T")

_NARROW, _TALL = 7, 40
_NAME = 20


def count(number: int, what: str) -> str:
    """1, "text"  ->  "1 text";  3, "text"  ->  "3 texts";  2, "guess"  ->  "2 guesses" """
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    detail: less prominent, after the text. tone: "up", "down" or "even" for a speed-up that was
    judged, else "".
    """

    text: str
    detail: str = ""
    tone: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


Columns = Mapping[str, Callable[[T], str | Cell]]
"""Heading -> what makes a record's cell."""


@dataclass(frozen=True)
class Table:
    """Rows under headings.

    left: how many of the first columns hold words; the others hold numbers. note: what a reader
    must know.
    """

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    left: int = 1
    note: str = ""

    @classmethod
    def of(
        cls, caption: str, columns: Columns[T], records: Iterable[T], left: int = 1, note: str = ""
    ) -> Table:
        """A table with a row per record."""
        rows = [[cell(record) for cell in columns.values()] for record in records]
        return cls(caption, [*columns], rows, left, note)

    @property
    def narrow(self) -> bool:
        """Whether another table fits beside it."""
        return self.left == 1 and len(self.headings) <= _NARROW

    @property
    def tall(self) -> bool:
        """Whether it is too long to show in full."""
        return len(self.rows) > _TALL


def markdown_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The table as Markdown. The first row holds the headings; `left` as in `Table`. Cells are
    written as they are: they may hold markup, but no unescaped bar."""
    headings, *others = rows
    rules = ["---"] * left + ["--:"] * (len(headings) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rules, *others))


def terminal_table(table: Table) -> TerminalTable:
    """The table for rich. Headings and cells wrap if space is short, except short row names."""
    from rich.table import Table as TerminalTable

    written = TerminalTable(title=table.caption or None, title_justify="left")
    for place, heading in enumerate(table.headings):
        words = place < table.left
        names = [len(str(row[0])) for row in table.rows] if place == 0 else []
        written.add_column(
            heading,
            justify="left" if words else "right",
            overflow="fold",
            no_wrap=0 < max(names, default=0) <= _NAME,
        )
    for row in table.rows:
        written.add_row(*map(str, row))
    return written
