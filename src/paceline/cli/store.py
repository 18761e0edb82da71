"""`paceline store`: the answers kept as references for later queries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.common import note
from paceline.cli.flags import App, told
from paceline.errors import StoreError
from paceline.tables import count

app = App(help="Inspect or clear a store of earlier answers.")

StorePath = Annotated[Path, told("The file given to --store.", argument=True)]


@app.command()
def info(path: StorePath) -> None:
    """Show how much a store holds."""
    from paceline.references import ReferenceStore

    path = _existing(path)
    with ReferenceStore(path) as store:
        found = store.info()
    typer.echo(
        f"{path}: {count(found.entries, 'answer')}, {found.text_bytes} bytes of text, "
        f"{found.file_bytes} bytes on disk"
    )


@app.command()
def clear(path: StorePath) -> None:
    """Delete everything a store holds."""
    from paceline.references import ReferenceStore

    path = _existing(path)
    with ReferenceStore(path) as store:
        removed = store.clear()
    note(f"cleared {path}, {count(removed, 'answer')} removed")


def _existing(path: Path) -> Path:
    path = Path(os.path.expanduser(path))
    if not path.exists():
        raise StoreError(f"there is no store at {path}: give the path that --store was given")
    return path
