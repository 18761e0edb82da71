"""What the commands share: loading a session, reading files, printing and ending."""

from __future__ import annotations

import gc
import json
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.errors import UsageError, readable, writable
from paceline.tables import Table, count, terminal_table

if TYPE_CHECKING:
    from paceline.session import Session


@contextmanager
def interruptible(at_once: bool = True) -> Iterator[None]:
    """Ctrl-C ends the body with KeyboardInterrupt, and with nothing else.

    at_once: if False, it waits for the body to finish, unless Ctrl-C is pressed again.

    Modules being imported swallow the interrupt, or turn it into an error of their own; and what
    is written half-way would be written twice.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        now, interrupted = at_once or interrupted, True
        if now:
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # whoever started the process wants no interrupts
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted:
            raise KeyboardInterrupt


@contextmanager
def on_interrupt(hint: str) -> Iterator[None]:
    """If Ctrl-C or SIGTERM ends the body, say how to continue."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        note(f"interrupted: {hint}")
        raise


def end_with_terminal() -> None:
    """From now on a terminal that is closed ends the command as SIGTERM does, which writes what there
    is; by default it would take all of it. Whoever ignores hang-ups, as `nohup` does, still does."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is signal.SIG_DFL:
        signal.signal(hangup, signal.getsignal(signal.SIGTERM))


def open_to_measure(model: str, method: str, **more: Any) -> Session:
    """`open_session` without the model's own datastore, which may hold answers to these very
    prompts."""
    return open_session(model, method, datastore=False, **more)


@interruptible()
def open_session(
    model: str,
    method: str,
    *,
    threads: int | None = None,
    store: Path | None = None,
    **placement: Any,
) -> Session:
    """Load a session with progress bars on standard error. placement: see `paceline.load`."""
    from paceline.drafters import check_method

    check_method(method)  # before the slow imports below
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    from paceline.api import load
    from paceline.kernels.native.calls import unavailable
    from paceline.models import RichProgress
    from paceline.references import ReferenceStore

    with RichProgress(model) as progress:
        session = load(
            model,
            method,
            store=ReferenceStore(store) if store is not None else None,
            progress=progress,
            **placement,
        )
    info = session.target.describe()
    if info.device == "cpu" and (reason := unavailable()):
        note(f"passes are slow without paceline's C library: {reason}")
    preparation = info.report.get("preparation") or {}
    for reason, number in preparation.get("left", {}).items():
        note(f"{count(number, 'linear layer')} unchanged: {reason}")
    # What is loaded stays until the process ends. Collecting it would only cost time: now and then
    # while generating, and a second at exit.
    gc.freeze()
    return session


@interruptible()
def request_options(**options: Any) -> dict[str, Any]:
    """The options that were given, checked before a model is loaded."""
    from paceline.options import Options

    given = {name: value for name, value in options.items() if value is not None}
    Options().with_(**given)
    return given


def circumstances(session: Session, model: str) -> dict[str, Any]:
    """How a result came about, for its file, ready for `json.dumps`."""
    from paceline.machine import describe_run

    info = session.target.describe()
    return {
        **describe_run(info.device),
        "model": {"name": model, "fingerprint": session.fingerprint},
        "graphs": info.report.get("graphs"),
        "preparation": info.report.get("preparation"),
        "budget": session.budget,
    }


@interruptible()
def check_installed() -> None:
    """Raise UsageError if a package that only the server needs is missing."""
    try:
        import paceline.serve.batch_run
        import paceline.serve.running_server  # noqa: F401
    except ImportError as error:
        raise UsageError(f"this needs {error.name}: pip install 'paceline[serve]'") from error


MARK = "\ufeff"
"""What editors may begin a file with."""


def read_text(path: Path, kind: str) -> str:
    """The text of a file; raises UsageError, naming it and its kind, if it cannot be read."""
    with readable(f"the {kind} {path}"):
        return path.read_text(encoding="utf-8").removeprefix(MARK)


def check_stdin() -> None:
    """Raise UsageError if there is no standard input at all."""
    if sys.stdin is None:
        raise UsageError("standard input is closed: connect it to a file or a terminal")


def check_writable(path: Path | None, *groups: object) -> None:
    """Raise UsageError if a result file could not be written, or is an input that options of these
    groups name, before work goes into it."""
    if path is None:
        return
    named = [value for group in groups for value in vars(group).values()]
    every = [each for value in named for each in (value if isinstance(value, list) else [value])]
    inputs = [each for each in every if isinstance(each, Path)]
    if any(path.exists() and each.exists() and path.samefile(each) for each in inputs):
        raise UsageError(f"{path} is read by this command: write the result to another file")
    with writable(path):
        # Before its links are followed: those of a pipe, such as /dev/stdout, lead to no file.
        if path.exists() and not (path.is_file() or path.is_dir()):
            return  # a pipe or device must not be opened twice
        path = path.resolve()  # a link would be deleted, and what it points to left
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
        if is_new:
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a result file; raises UsageError if that fails."""
    with writable(path):
        # Names of files may be no text.
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path | None, content: object) -> None:
    """Write a result file as JSON, if there is one; see `write_text`."""
    if path is not None:
        write_text(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def console(stderr: bool = False) -> Console:
    """The console for results, or that for bars, notes and statistics; brackets and colons are
    printed as they are."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def print_lines(lines: Iterable[object], style: str | None = None) -> None:
    """Print lines as results; none is broken."""
    out = console()
    with writable("the output"):
        for line in lines:
            out.print(str(line), style=style, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table as a result; cells too wide for their column are folded, never cut off."""
    out = console()
    # Below 80 columns nothing fits, nor do many columns; and without a terminal a row is one line,
    # for `grep` and `awk`.
    width = max(out.width, 80) if out.is_terminal else 200
    out.width = max(width, 20 + 6 * len(table.headings))
    with writable("the table"):
        out.print(terminal_table(table))


def progress(label: str) -> Progress:
    """A bar with counts and the remaining time, on standard error; it disappears when done."""
    return Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )


def note(text: str, style: str = "dim") -> None:
    """Print one line on standard error; a terminal breaks it between words."""
    out = console(stderr=True)
    out.print(text, style=style, soft_wrap=not out.is_terminal)
