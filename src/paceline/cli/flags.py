"""How commands and groups declare their options, and the options of several commands."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, TypeVar

SAMPLING, DRAFTING, MACHINE = "Sampling", "Drafting", "How the model runs"
"""Groups of options in `--help`."""

T = TypeVar("T")


def told(
    text: str, *flags: str, panel: str | None = None, argument: bool = False, **limits: int | float
) -> dict[str, Any]:
    """What `Annotated` says of a parameter that is an option; see `paceline.cli.groups.App`.

    text: its help. flags: by default one made from the parameter's name. argument: whether it is
    an argument, without a flag. limits: min and max.
    """
    return {"help": text, "flags": flags, "panel": panel, "argument": argument, "limits": limits}


def option(default: T, text: str, *flags: str, **more: Any) -> T:
    """Make a field of a group an option; see `told`."""
    made: T = field(default=default, metadata=told(text, *flags, **more))
    return made


ModelOption = Annotated[str, told("Alias, folder, GGUF file or hub id.", "--model", "-m")]
DraftModelOption = Annotated[
    str | None,
    told("Smaller model that drafts: alias, folder, GGUF file or hub id.", panel=DRAFTING),
]
BudgetOption = Annotated[
    int | None, told("Most tokens guessed per round; default: as many as pay off.", panel=DRAFTING)
]
JsonOption = Annotated[Path | None, told("Write the result here as JSON.", "--json")]
AliasOption = Annotated[
    list[str] | None, told("Another name that the model answers to; may be repeated.")
]
DatastoreOption = Annotated[
    str | None,
    told(
        'Datastore to guess from and to add answers to; "own" is the model\'s own.', panel=DRAFTING
    ),
]
