"""The contract of `Target.follow`: it scores the text it was given, however it was given."""

from __future__ import annotations

import numpy as np

from paceline.chains import ChainRequest
from paceline.testing.reference import require
from paceline.testing.watched_target import WatchedTarget


def check_chains(watched: WatchedTarget) -> None:
    """Check texts that grow by one or several tokens and are cut back to any position.

    watched: a new target with `CHAINS`.

    Raises AssertionError for scores that differ from those of the text read from scratch.
    """
    target = watched.target
    text = watched.tokens(9)
    slot, other = watched.open(text), watched.open(watched.tokens(5))
    watched.play(other, 3)
    known = len(text)
    for kept, new in ((9, 0), (9, 1), (10, 1), (11, 4), (15, 0), (7, 0), (7, 2), (1, 0), (0, 3)):
        tokens = watched.tokens(new)
        text[kept:] = tokens
        scores = target.follow(slot, min(kept, known), tokens)
        known = len(text)
        row = np.full(target.vocab_size, -np.inf, dtype=np.float32)
        ids = np.arange(len(scores.numbers)) if scores.tokens is None else scores.tokens
        row[ids] = scores.numbers
        fresh = watched.reference.row(text).float().cpu().numpy()
        require(
            np.allclose(row, fresh, rtol=0, atol=watched.tolerance),
            f"follow did not return the scores of its text of {len(text)} tokens: they differ by "
            f"{np.nanmax(np.abs(row - fresh)):.3g}",
        )
        watched.play(other, 2)
    _check_going_on(watched, slot, text)
    watched.close(slot)
    watched.texts[slot := target.open(text)] = list(text)
    watched.play(slot, 3)


def _check_going_on(watched: WatchedTarget, slot: int, text: list[int]) -> None:
    """Passes in one call must find the same tokens as single passes, and leave the same text."""
    target = watched.target
    found = target.generate_chain(slot, len(text), [], ChainRequest(5, 2, target.vocab_size))
    if found is None:
        return
    begin = len(text)
    for ranked in found.ranked:
        scores = target.follow(slot, min(begin, len(text)), text[begin:])
        best = scores.token(int(scores.numbers.argmax()))
        require(
            best == ranked[0][0],
            f"after {len(text)} tokens a chain in one call continues with {ranked[0][0]}, "
            f"one pass with {best}",
        )
        text.append(best)
