"""Progress of a long first run, shown in paceline's own bars while other libraries are muted.

The library reports to a callback and is silent by default; the command line passes `RichProgress`.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

Stage = Literal["wait", "download", "verify", "convert", "measure"]

_LABELS: dict[Stage, str] = {
    "wait": "another process is fetching {}",
    "download": "downloading {}",
    "verify": "verifying {}",
    "convert": "reading the vocabulary of {}",
    "measure": "measuring pass costs of {} (only once)",
}


ProgressCallback = Callable[[Stage, int, int | None], None]
"""Receives what is fetched, made or measured: the stage, its bytes done, and how many there are;
None if unknown."""


def ignore_progress(stage: Stage, done: int, total: int | None) -> None:
    """The silent callback."""


class RichProgress:
    """Progress bars on standard error, one per stage; a context manager that is the callback.

    with RichProgress("smollm2-135m") as progress:
        pull("smollm2-135m", progress=progress)

    Afterwards, for draft models that a session opens later, it prints a line per stage.
    """

    def __init__(self, name: str, console: Console | None = None) -> None:
        # The stream is bound now, as `muted` replaces sys.stderr while another library runs.
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console or Console(file=sys.stderr),
        )
        self._name = name
        self._tasks: dict[Stage, TaskID] = {}
        self._last: Stage | None = None  # after the bars
        self._ended = False

    def __enter__(self) -> RichProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        # Measuring is incidental: it need not stay in a log.
        if "measure" in self._tasks:
            self._bars.remove_task(self._tasks.pop("measure"))
        if self._bars.tasks:
            self._bars.stop()
        else:  # where `stop` would print an empty line
            self._bars.live.stop()
        self._ended = True

    def __call__(self, stage: Stage, done: int, total: int | None) -> None:
        """Move the stage's bar."""
        if self._ended:
            if stage != self._last:
                self._bars.console.print(_LABELS[stage].format("the draft model"))
            self._last = stage
            return
        amount = "" if total is None else f"{done / 1e6:.0f}/{total / 1e6:.0f} MB"
        if stage not in self._tasks:
            # Started only when there is something to show: starting the bars moves the cursor.
            self._bars.start()
            self._finish()
            label = _LABELS[stage].format(self._name)
            self._tasks[stage] = self._bars.add_task(label, total=total, amount=amount)
        self._bars.update(self._tasks[stage], completed=done, total=total, amount=amount)

    def _finish(self) -> None:
        """Complete all bars, which may have had no known end."""
        for task in self._tasks.values():
            self._bars.update(task, total=1, completed=1)
            self._bars.stop_task(task)


loading = threading.RLock()
"""Held while transformers loads a model: meanwhile it replaces functions of its own for the whole
process, and two loads at once would restore them wrongly."""


@contextmanager
def muted() -> Iterator[None]:
    """Keep transformers' bars, reports and warnings off standard error, then restore everything.
    One thread at a time, see `loading`.

    transformers has only process-wide switches, and its GGUF reader writes to sys.stderr regardless
    of them; so the switches are set for the duration and the stream is redirected.
    """
    with loading:
        # Imported before the redirection: its log handler keeps the stderr it finds on import.
        from transformers.utils import logging

        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            with redirect_stderr(io.StringIO()):
                yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
