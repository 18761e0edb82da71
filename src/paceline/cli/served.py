"""What the commands that answer OpenAI's requests share: `serve` and `batch`."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import common
from paceline.errors import UsageError

__all__ = ["AliasOption", "check_installed"]

AliasOption = Annotated[
    list[str] | None,
    typer.Option("--alias", help="Another name that the model answers to; may be repeated."),
]


@common.interruptible()
def check_installed() -> None:
    """Raise UsageError if a package that only the server needs is missing."""
    try:
        import paceline.serve.batch_run
        import paceline.serve.running_server  # noqa: F401
    except ImportError as error:
        raise UsageError(f"this needs {error.name}: pip install 'paceline[serve]'") from error
