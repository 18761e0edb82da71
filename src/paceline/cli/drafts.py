"""`--draft-model NAME`, short for `speculative:draft=NAME`."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import flags
from paceline.defaults import DEFAULT_METHOD
from paceline.errors import UsageError

__all__ = ["DraftModelOption", "MethodOption", "chosen_method"]

_DRAFTING = "speculative"

DraftModelOption = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        help="Smaller model that drafts: alias, folder, GGUF file or hub id.",
        rich_help_panel=flags.DRAFTING,
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        help=f"Method and settings, e.g. anpd:n=5,k=7. Default: {DEFAULT_METHOD}.",
        rich_help_panel=flags.DRAFTING,
    ),
]


def chosen_method(method: str | None, draft_model: str | None) -> str:
    """The method of a command: by default `DEFAULT_METHOD`, or `speculative` with a draft model.

    Raises UsageError for a method that takes no draft model, or has one already.
    """
    if draft_model is None:
        return DEFAULT_METHOD if method is None else method
    from paceline.drafters import add_draft
    from paceline.drafters.settings import bracketed

    found = add_draft(_DRAFTING if method is None else method, draft_model)
    if found is None:
        raise UsageError(
            f"method {method} takes no draft model: leave out --draft-model, or let the method "
            f"draft for the draft model: --method {_DRAFTING}:inner={bracketed(str(method))}"
        )
    return found
