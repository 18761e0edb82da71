"""Options of several commands, in the groups that `--help` shows, and how groups declare theirs."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, TypeVar

import typer

SAMPLING, DRAFTING, MACHINE = "Sampling", "Drafting", "How the model runs"
"""Groups of options in `--help`."""

T = TypeVar("T")


def option(
    default: T, text: str, *flags: str, panel: str | None = None, **limits: int | float
) -> T:
    """Make a field of a group an option; see `paceline.cli.groups.options_of`. text: its help.
    flags: by default one made from the field's name. limits: min and max."""
    told = {"help": text, "flags": flags, "panel": panel, "limits": limits}
    made: T = field(default=default, metadata=told)
    return made


ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Alias, folder, GGUF file or hub id.")
]
DraftModelOption = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        help="Smaller model that drafts: alias, folder, GGUF file or hub id.",
        rich_help_panel=DRAFTING,
    ),
]
BudgetOption = Annotated[
    int | None,
    typer.Option(
        "--budget",
        help="Most tokens guessed per round; default: as many as pay off.",
        rich_help_panel=DRAFTING,
    ),
]
FixedBudgetOption = Annotated[
    int, typer.Option("--budget", help="Most tokens guessed per round.", rich_help_panel=DRAFTING)
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the result here as JSON.")]
AliasOption = Annotated[
    list[str] | None,
    typer.Option("--alias", help="Another name that the model answers to; may be repeated."),
]
DatastoreOption = Annotated[
    str | None,
    typer.Option(
        "--datastore",
        help='Datastore to guess from and to add answers to; "own" is the model\'s own.',
        rich_help_panel=DRAFTING,
    ),
]
