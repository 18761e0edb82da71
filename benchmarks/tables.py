"""How benchmarks print: tables whose first column is text and whose others are numbers."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paceline.tables import Table as Described
from paceline.tables import terminal_table


def new_table(title: str, first: str, *others: str) -> Table:
    """A table with the first column aligned left, the others right."""
    return terminal_table(Described(title, [first, *others], []))


def number(value: float | None, unit: str = "") -> str:
    """Two decimals and the unit; a dash for None."""
    return "-" if value is None else f"{value:.2f}{unit}"


def show(table: Table) -> None:
    """Print verbatim; without a terminal a row is one line."""
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(console.width, 80) if console.is_terminal else 200
    console.print(table)


def shown_command() -> str:
    """This process's command, without the private folders of absolute paths."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    return shlex.join(["python", *words])
