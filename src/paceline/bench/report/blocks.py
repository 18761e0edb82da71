"""What a report is made of, whatever it is written as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

__all__ = [
    "Block",
    "Cell",
    "Chapter",
    "Document",
    "Listing",
    "Paragraph",
    "Picture",
    "Plot",
    "Section",
    "Table",
    "Verdict",
    "Verdicts",
]


_NARROW, _TALL = 7, 40


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    detail: said more quietly behind the text; tone: "up", "down" or "even" for a speed-up that was
    judged, else "".
    """

    text: str
    detail: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Paragraph:
    """Sentences."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Listing:
    """Lines to copy."""

    kind: ClassVar[str] = "listing"
    text: str


@dataclass(frozen=True)
class Table:
    """Rows under headings.

    left: so many columns, the first ones, hold words; numbers stand in the others. note: what has
    to be known to read it.
    """

    kind: ClassVar[str] = "table"
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: int = 1
    note: str = ""

    @property
    def narrow(self) -> bool:
        """Whether another one finds room beside it."""
        return self.left == 1 and len(self.headings) <= _NARROW

    @property
    def tall(self) -> bool:
        """Whether it should not be shown at full length."""
        return len(self.rows) > _TALL


@dataclass(frozen=True)
class Plot:
    """A drawing.

    name: differs within a report; svg: a whole file, whose words and axes are in `currentColor`;
    wide: to stand alone in its row.
    """

    kind: ClassVar[str] = "plot"
    name: str
    caption: str
    svg: str
    wide: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture file that lies in the folder already."""

    kind: ClassVar[str] = "picture"
    path: Path


@dataclass(frozen=True)
class Verdict:
    """What a run found about one method.

    label: what kind of method it is, "" for paceline's own; figure: the one number; detail: how
    sure it is; tone: as a cell's; sentences: the first one is about all texts.
    """

    method: str
    label: str
    figure: str
    detail: str
    tone: str
    sentences: Sequence[str]


@dataclass(frozen=True)
class Verdicts:
    """One verdict per method."""

    kind: ClassVar[str] = "verdicts"
    verdicts: Sequence[Verdict]


Block = Paragraph | Listing | Table | Plot | Picture | Verdicts


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Chapter:
    """What one file found.

    name: differs within a report; source: the file; subtitle: one line about it.
    """

    name: str
    title: str
    source: str
    subtitle: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    introduction: str
    chapters: Sequence[Chapter]
    words: Table
