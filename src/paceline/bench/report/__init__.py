"""Reports from result files: one HTML page, and Markdown with its plots beside it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from paceline.bench.report.blocks import Plot
from paceline.bench.report.chapters import document
from paceline.bench.report.drawing import alone
from paceline.bench.report.folder import read_folder
from paceline.bench.report.html import html
from paceline.bench.report.markdown import PLOTS, markdown
from paceline.errors import UsageError

__all__ = ["write_report"]


def write_report(results: Path, note: Callable[[str], None] = lambda text: None) -> list[Path]:
    """Write report.html, report.md and the plots of report.md into the folder of the results; for
    a single file, into a folder beside it with its name. Returns the paths of both reports.

    note: is told which files were skipped.

    Raises UsageError if there are no results, one is damaged, or software is missing, and OSError
    if writing fails.
    """
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise UsageError(f"the report needs {package}: pip install 'paceline[bench]'")
    made = document(read_folder(results, note))
    folder = (
        results if results.is_dir() else results.with_suffix("" if results.suffix else ".report")
    )
    folder.mkdir(exist_ok=True)
    written = {folder / "report.html": html(made), folder / "report.md": markdown(made)}
    (folder / PLOTS).mkdir(exist_ok=True)
    sections = (section for chapter in made.chapters for section in chapter.sections)
    blocks = (block for section in sections for block in section.blocks)
    plots = {
        folder / PLOTS / f"{each.name}.svg": alone(each.svg)
        for each in blocks
        if isinstance(each, Plot)
    }
    for path, text in (plots | written).items():
        path.write_text(text, encoding="utf-8", errors="replace")
    return list(written)
