"""What the commands have in common that answer OpenAI's requests: `serve` and `batch`."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import common, drafts
from paceline.errors import UsageError

__all__ = ["AliasOption", "check_installed", "served_method"]

AliasOption = Annotated[
    list[str] | None,
    typer.Option("--alias", help="Another name that the model answers to; may be repeated."),
]


def served_method(method: str | None, draft_model: str | None) -> str:
    """As `drafts.chosen_method`; `auto` where the user names neither."""
    return drafts.chosen_method(method if method or draft_model else "auto", draft_model)


@common.interruptible()
def check_installed() -> None:
    """Raise UsageError where a package that only the server needs is missing."""
    try:
        import paceline.serve.batch_run
        import paceline.serve.running_server  # noqa: F401
    except ImportError as error:
        raise UsageError(f"this needs {error.name}: pip install 'paceline[serve]'") from error
