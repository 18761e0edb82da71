"""`paceline models`: which models have an alias, which are here, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import interruptible, note, print_table
from paceline.cli.flags import App, told
from paceline.errors import ModelError
from paceline.tables import Columns, Table

if TYPE_CHECKING:
    from paceline.models import ModelInfo

app = App(help="List, fetch, locate and remove the models that have an alias.")

Name = Annotated[str, told("An alias, see `paceline models list`.", argument=True)]


@app.command("list")
def list_() -> None:
    """Show every alias, whether it is downloaded, and its licence."""
    from paceline.models import list_models

    columns: Columns[ModelInfo] = {
        "alias": lambda info: info.alias,
        "here": lambda info: "damaged" if info.damage else "yes" if info.pulled else "no",
        "download": lambda info: f"{info.download_size / 1e6:.0f} MB",
        "on disk": lambda info: f"{(info.size_on_disk or info.stored_size) / 1e6:.0f} MB",
        "licence": lambda info: info.licence,
        "what": lambda info: info.description,
    }
    print_table(Table.of("", columns, list_models(), left=len(columns)))


@app.command()
def pull(name: Name, force: Annotated[bool, told("Fetch it again.")] = False) -> None:
    """Fetch a model, once."""
    from paceline import models

    with interruptible(), models.RichProgress(name) as progress:
        folder = models.pull(name, progress=progress, force=force)
    typer.echo(folder)


@app.command()
def path(name: Name) -> None:
    """Print the folder of a model; transformers loads it with gguf_file="model.gguf"."""
    from paceline import models

    typer.echo(models.path(name))


@app.command()
def gguf(
    name: Name, file: Annotated[Path, told("The file to write; it must not exist.", argument=True)]
) -> None:
    """Fetch the GGUF file that a model is made from, and write it to FILE."""
    from paceline.models import ModelStore, RichProgress

    with interruptible(), RichProgress(name) as progress:
        ModelStore().write_gguf(name, file, progress=progress)
    typer.echo(file)


@app.command()
def clear() -> None:
    """Delete the caches that make models start faster; they are rebuilt when needed."""
    from paceline.models import clear_descriptions, clear_prepared

    note(f"{(clear_descriptions() + clear_prepared()) / 1e6:.0f} MB freed")


@app.command()
def remove(name: Name) -> None:
    """Delete a fetched model."""
    from paceline import models

    freed = models.remove(name)
    if not freed:
        raise ModelError(f"{name} is not on this machine: there is nothing to remove")
    note(f"removed {name}, {freed / 1e6:.0f} MB freed")
