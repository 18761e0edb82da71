"""A draft model that says one token after the other, without a round of the loop for each.

Its own texts need neither trees nor walks: what it has said is what comes next. So a token costs
a pass of the model and little else, where the target can do that (`Target.follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paceline.drafters.draft_passes import Guess, Said, Speaker
from paceline.kernels.likeliest import likeliest
from paceline.protocols import Target
from paceline.sampling import GREEDY, Sampler
from paceline.scores import Ranked, TokenScores

__all__ = ["DraftChain"]

# A pass that reads more tokens is counted as one that reads a prompt.
_FEW = 8


class DraftChain(Speaker):
    """Says what plain decoding of the draft model would.

    target: with `CHAINS`. vocab_size: of the model that it drafts for. others: runners-up to keep
    per guess. clock: seconds.
    """

    def __init__(
        self, target: Target, vocab_size: int, others: int, clock: Callable[[], float]
    ) -> None:
        self._target = target
        self._vocab_size = vocab_size
        self._others = others
        self._clock = clock
        self._sampler = GREEDY
        self._context: list[int] = []
        self._slot: int | None = None
        self._known = 0  # tokens of the text that the target has as they are

    def start(
        self, context: Sequence[int], references: Sequence[Sequence[int]], sampler: Sampler
    ) -> list[int]:
        """See `Speaker.start`. References are not looked at."""
        self._context, self._sampler = list(context), sampler
        return self._context

    def correct(self, kept: int) -> None:
        """See `Speaker.correct`."""
        self._known = min(self._known, kept)

    @property
    def unread(self) -> int:
        """See `Speaker.unread`."""
        return len(self._context) - (0 if self._slot is None else self._known) - 1

    def say(self, room: int, passes: int = 1) -> Sequence[Said]:
        """A token per pass; see `Speaker.say`."""
        passes = min(passes, room)
        if passes < 1:
            return []
        began, context = self._clock(), self._context
        if self._slot is None:
            self._slot = self._target.open(context)
            self._known, reads = len(context), 1 + self._target.pending(self._slot)
        else:
            reads = len(context) - self._known
        guesses = self._together(self._slot, passes)
        each = (self._clock() - began) / len(guesses)
        return [
            Said((guess,), 1, each, not place and reads > _FEW)
            for place, guess in enumerate(guesses)
        ]

    def _together(self, slot: int, passes: int) -> list[Guess]:
        """Guesses of up to `passes` passes, all of them where nothing but the target decides."""
        context = self._context
        new, known = context[self._known :], len(context)
        found = None
        if self._sampler.takes_likeliest:
            asked = slot, self._known, new, passes, 1 + self._others
            found = self._target.go_on(*asked, self._vocab_size)
        if found is None:
            guesses = [self._read(self._target.follow(slot, self._known, new), context)]
        else:
            guesses = [_guess(ranked) for ranked in found]
        self._known = known + len(guesses) - 1
        context += [guess.token for guess in guesses]
        return guesses

    def stop(self) -> None:
        """See `Speaker.stop`."""
        if self._slot is not None:
            self._target.close(self._slot)
            self._slot = None

    def _read(self, scores: TokenScores, context: Sequence[int]) -> Guess:
        """What is drawn, with the runners-up; for chances see `DraftRounds`."""
        drawn = self._sampler.decide_among(scores, context, self._vocab_size)
        numbers = drawn.numbers
        if not self._sampler.greedy:
            numbers = numbers * self._sampler.temperature
        places, shares = likeliest(numbers.astype(np.float32, copy=False)[None], 1 + self._others)
        ranked = [
            (drawn.token(place), share)
            for place, share in zip(places[0].tolist(), shares[0].tolist(), strict=True)
        ]
        return _guess(ranked)


def _guess(ranked: Ranked) -> Guess:
    token, chance = ranked[0]
    return Guess(token, chance, tuple(each for each in ranked[1:] if each[0] != token and each[1]))
