"""The command line: `paceline`, or `python -m paceline`.

One file per command. Commands parse, call the library and print; errors that a user can mend are
one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from paceline import __version__
from paceline.cli import chat, compare, generate, models, store
from paceline.errors import PacelineError

__all__ = ["app", "main"]

app = typer.Typer(
    name="paceline",
    help="Make a language model write the same text in less time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("compare")(compare.compare)
app.add_typer(models.app, name="models")
app.add_typer(store.app, name="store")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Make a language model write the same text in less time."""


def main() -> None:
    """Entry point of the `paceline` command."""
    try:
        app()
    except PacelineError as error:
        console = Console(stderr=True, highlight=False)
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
