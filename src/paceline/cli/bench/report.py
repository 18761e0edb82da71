"""`paceline bench report`: tables, plots and sentences from result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import common


@common.interruptible()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder that 'paceline bench run' wrote to.")],
) -> None:
    """Make a page and a Markdown file of the results in a folder.

    Writes report.html, which needs nothing else, report.md, and the latter's plots. Results of
    `paceline bench simulate` and `ablate` are taken in as well, and files of `paceline tune
    --json` that lie there.
    """
    from paceline.bench.report import write_report

    with common.writing(f"the report to {folder}"):
        written = write_report(folder)
    for path in written:
        common.output_console().print(str(path), soft_wrap=True)
