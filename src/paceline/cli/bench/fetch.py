"""`paceline bench fetch`: public evaluation sets, where there is a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import common
from paceline.cli.bench import shared
from paceline.cli.flags import told

if TYPE_CHECKING:
    from paceline.bench.fetch import Fetcher
    from paceline.bench.sources import Source


@common.interruptible()
def fetch(
    suites: Annotated[list[str], told('Suites, sets, or "all".', argument=True)],
    data: Annotated[Path, told("Folder for the JSONL files.")],
    limit: shared.LimitOption = None,
    force: Annotated[bool, told("Fetch existing files again.")] = False,
) -> None:
    """Get public evaluation sets, each with its source and its licence.

    Existing files are left alone. The sets belong to their authors: their licences are printed, and
    stored in every record.
    """
    from paceline.bench.fetch import Fetcher
    from paceline.bench.sources import find_sources

    fetcher = Fetcher(data)
    for stem, source in find_sources(suites).items():
        path = fetcher.path(stem)
        if path.exists() and not force:
            common.note(f"{path} already exists: use --force to fetch it again")
            continue
        count = _fetch(fetcher, stem, source, limit)
        typer.echo(f"{path}: {count} records of {source.place.page}, licence: {source.licence}")


def _fetch(fetcher: Fetcher, stem: str, source: Source, limit: int | None) -> int:
    """Fetch one set with a progress bar."""
    with common.progress("fetching {task.description}") as bars:
        task = bars.add_task(stem, total=None)

        def show(done: int, total: int | None) -> None:
            bars.update(task, completed=done, total=total)

        return fetcher.fetch(stem, source, limit, show)
