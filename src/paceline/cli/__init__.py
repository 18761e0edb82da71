"""The command line: `paceline`, or `python -m paceline`.

One file per command, or for a few that are alike. Commands parse, call the library and print.
Errors that a user can fix are one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import errno
import io
import signal
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Final, cast

import typer

from paceline import __version__
from paceline.cli import (
    batch,
    bench,
    chat,
    compare,
    datastore,
    generate,
    models,
    serve,
    store,
    train,
    tune,
)
from paceline.cli.common import note
from paceline.cli.flags import App
from paceline.errors import PacelineError

__all__ = ["app", "exit_code", "main"]

# What typer raises for a wrong word on the command line. It exports only this subclass; the base is
# in click or in typer itself, by version.
_Mistyped: Final = cast(type[Exception], typer.BadParameter.__base__)

app = App(
    name="paceline",
    help="Make a language model write the same text in less time.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate.generate, chat.chat, compare.compare, tune.tune, serve.serve, batch.batch):
    app.command()(command)
for group in (bench, train, models, store, datastore):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])


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


def _terminate(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # some code swallows any error, so a second one kills
    sys.exit(128 + number)


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command; 2 if there is a mistake that its user can correct, said in one sentence, and 130
    after Ctrl-C."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # which would save nothing
        signal.signal(signal.SIGTERM, _terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal or locale that lacks a character is no reason to lose the rest of the text.
        sys.stdout.reconfigure(errors="replace")
    try:
        return command() or 0
    except (PacelineError, _Mistyped) as error:
        message = " ".join(str(getattr(error, "format_message", error.__str__)()).splitlines())
        if message:  # there is none after typer has printed the help of a bare `paceline`
            note(f"error: {message}", style="red")
    except OSError as error:
        # Paths are used in many places; a name may be too long, or a folder inaccessible.
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        what = f"use {error.filename}" if error.filename is not None else "write"
        note(f"error: cannot {what}: {error.strerror}", style="red")
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return 2


@cache
def _command() -> Callable[..., int | None]:
    """The command line, put together from its parts."""
    return typer.main.get_command(app)


def main() -> None:
    """Entry point of the `paceline` command."""
    sys.exit(exit_code(partial(_command(), standalone_mode=False)))
