"""`paceline train`: making training data, and training drafters."""

from __future__ import annotations

from paceline.cli.flags import App
from paceline.cli.train import data, trained
from paceline.training.methods import TRAINED

__all__ = ["app"]

app = App(name="train", help="Make drafters for a model, and the data they learn from.")


app.command("data")(data.data)
for name, kind in TRAINED.items():
    app.command(name)(trained.command_of(kind))
