"""Text on the terminal while it is generated, and the line of statistics below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from paceline.session import Completion, Stream

DRAFTED = "green"


def print_stream(stream: Stream, console: Console, show_drafts: bool) -> Completion:
    """Print chunks as they come; Ctrl-C ends the generation and keeps what there is."""
    try:
        for chunk in stream:
            style = DRAFTED if show_drafts and chunk.drafted else None
            console.print(
                chunk.text, style=style, end="", markup=False, highlight=False, soft_wrap=True
            )
    except KeyboardInterrupt:
        console.print()
        return stream.completion
    console.print()
    return stream.completion


def summary(completion: Completion) -> str:
    """One line: what was generated, how fast, and how much of it was guessed."""
    stats = completion.stats
    return (
        f"[{stats.tokens} tokens in {stats.seconds:.2f} s, {stats.tokens_per_second:.1f} tokens/s; "
        f"{stats.rounds} rounds, {stats.mean_acceptance_length:.2f} tokens per round, "
        f"{stats.draft_acceptance_rate:.0%} of the guesses accepted; "
        f"ended by: {completion.finish_reason}]"
    )
