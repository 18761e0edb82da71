"""Text on the terminal while it is generated, and the line of statistics below it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment, Segments

from paceline.cli import common
from paceline.errors import writable
from paceline.tables import count

if TYPE_CHECKING:
    from paceline.session import Chunk, Completion, Stream

DRAFTED = "green"
SOURCES = (DRAFTED, "cyan", "magenta", "yellow", "blue", "red")
"""Colours of sources, in the order in which they are first right; reused from the front."""


def print_stream(stream: Stream, console: Console, show_drafts: bool) -> Completion:
    """Print chunks as they come; Ctrl-C ends the generation and keeps what there is.

    show_drafts: colour what was guessed right. If the drafter has sources, the colour is that of
    the first one that guessed it, bold if several did; a line below is the legend.
    """
    written = 0
    colours: dict[str, str] = {}
    interrupted = False
    try:
        for chunk in stream:
            with common.interruptible(at_once=False):
                _write(console, chunk.text, _style(chunk, colours) if show_drafts else "none")
                written += len(chunk.text)
    except KeyboardInterrupt:
        interrupted = True
    completion = stream.completion
    if interrupted:  # the text may have ended before all of it was printed
        completion = replace(completion, finish_reason="interrupted")
    # What was held back when the generation was interrupted.
    _write(console, completion.text[written:] + "\n")
    if colours and console.is_terminal:
        for name, colour in colours.items():
            _write(console, f"{name} ", colour)
        _write(console, "\n")
    if completion.unkept is not None:
        what = "" if completion.unkept.kept else "the answer is not kept: "
        common.note(f"{what}{completion.unkept}", style="yellow")
    return completion


def _style(chunk: Chunk, colours: dict[str, str]) -> str:
    """The style of a chunk. colours: of sources right so far; new ones are added."""
    if not chunk.sources:
        return DRAFTED if chunk.drafted else "none"
    colour = colours.setdefault(chunk.sources[0], SOURCES[len(colours) % len(SOURCES)])
    return f"bold {colour}" if len(chunk.sources) > 1 else colour


def _write(console: Console, text: str, style: str = "none") -> None:
    """Write text as it is: `Console.print` would drop control characters and expand tabs."""
    with writable("the output"):
        console.print(Segments([Segment(text, console.get_style(style))]), end="", crop=False)


def summary(completion: Completion) -> str:
    """One line: what was generated, how fast, and how much of it was guessed."""
    stats = completion.stats
    right = ", ".join(f"{name} {source.accepted}" for name, source in stats.sources.items())
    guesses = "no guesses"
    if stats.drafted:
        guesses = f"{stats.draft_acceptance_rate:.0%} of the guesses accepted"
        guesses += f" ({right})" if right else ""
    lossy = "" if completion.lossless else "; lossy: typical acceptance"
    return (
        f"[{count(stats.tokens, 'token')} in {stats.seconds:.2f} s, "
        f"{stats.tokens_per_second:.1f} tokens/s; {count(stats.rounds, 'round')}, "
        f"{stats.mean_acceptance_length:.2f} tokens per round, {guesses}; "
        f"ended by: {completion.finish_reason}{lossy}]"
    )
