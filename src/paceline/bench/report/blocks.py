"""The parts of a report, independent of its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.bench.report.colours import OTHERS, kind_of
from paceline.tables import Cell, Table


@dataclass(frozen=True)
class Listing:
    """Lines to copy."""

    text: str


@dataclass
class Plot:
    """A plot. name: unique within a report; wide: alone in its row; svg: a whole file, with text
    and axes in `currentColor`, once it is drawn."""

    name: str
    caption: str
    wide: bool = False
    svg: str = ""


PICTURE_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
"""Ending -> media type of files that can be shown."""


@dataclass(frozen=True)
class Picture:
    """A picture file already in the folder."""

    path: Path


@dataclass(frozen=True)
class Verdict:
    """A run's result for one method.

    speedup: the main number, with its uncertainty; sentences: the first one is about all texts.
    """

    method: str
    speedup: Cell
    sentences: Sequence[str]

    @property
    def label(self) -> str:
        """The kind of method, "" for paceline's own."""
        return OTHERS if kind_of(self.method) == OTHERS else ""


Block = str | Listing | Table | Plot | Picture | list[Verdict]
"""Plain text is a paragraph; of verdicts there is one per method."""


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Chapter:
    """The results of one file.

    name: unique within a report; source: the file; subtitle: one line about it.
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
