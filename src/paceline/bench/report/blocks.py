"""What a report is made of, whatever it is written as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.tables import Table

__all__ = [
    "Block",
    "Chapter",
    "Document",
    "Listing",
    "Paragraph",
    "Picture",
    "Plot",
    "Section",
    "Verdict",
    "Verdicts",
]


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
