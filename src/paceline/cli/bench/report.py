"""`paceline bench report`: tables, plots and sentences from result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from paceline.cli import common
from paceline.cli.flags import told
from paceline.errors import writable


@common.interruptible()
def report(
    results: Annotated[
        Path, told("Folder that 'paceline bench run' wrote to, or one of its files.", argument=True)
    ],
) -> None:
    """Make a page and a Markdown file of the results in a folder, or of one file.

    Writes report.html, which needs nothing else, and report.md with its plots, to the folder or to
    one named after the file. Also includes results of `paceline bench simulate` and `ablate`, and
    files of `paceline tune --json` in the folder.
    """
    from paceline.bench.report import write_report

    with writable(f"the report of {results}"):
        written = write_report(results, common.note)
    common.print_lines(written)
