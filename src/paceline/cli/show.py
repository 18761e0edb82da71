"""Text on the terminal while it is generated, and the line of statistics below it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment, Segments

from paceline.cli import common

if TYPE_CHECKING:
    from paceline.session import Completion, Stream

DRAFTED = "green"


def print_stream(stream: Stream, console: Console, show_drafts: bool) -> Completion:
    """Print chunks as they come; Ctrl-C ends the generation and keeps what there is."""
    written = 0
    with suppress(KeyboardInterrupt):
        for chunk in stream:
            with common.interruptible(at_once=False):
                _write(console, chunk.text, DRAFTED if show_drafts and chunk.drafted else "none")
                written += len(chunk.text)
    completion = stream.completion
    # What was held back where the generation was broken off.
    _write(console, completion.text[written:] + "\n")
    return completion


def _write(console: Console, text: str, style: str = "none") -> None:
    """Text as it is: `Console.print` would drop control characters and expand tabs."""
    with common.writing("the output"):
        console.print(Segments([Segment(text, console.get_style(style))]), end="", crop=False)


def summary(completion: Completion) -> str:
    """One line: what was generated, how fast, and how much of it was guessed."""
    stats = completion.stats
    return (
        f"[{stats.tokens} tokens in {stats.seconds:.2f} s, {stats.tokens_per_second:.1f} tokens/s; "
        f"{stats.rounds} rounds, {stats.mean_acceptance_length:.2f} tokens per round, "
        f"{stats.draft_acceptance_rate:.0%} of the guesses accepted; "
        f"ended by: {completion.finish_reason}"
        + ("]" if completion.lossless else "; lossy: typical acceptance]")
    )
