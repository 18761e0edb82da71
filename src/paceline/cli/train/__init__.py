"""`paceline train`: making training data, and training drafters."""

from __future__ import annotations

import typer

from paceline.cli.train import data, trained
from paceline.training.methods import TRAINED

__all__ = ["app"]

app = typer.Typer(
    name="train",
    help="Make drafters for a model, and the data they learn from.",
    no_args_is_help=True,
)


app.command("data")(data.data)
for name, kind in TRAINED.items():
    app.command(name)(trained.command_of(kind))
