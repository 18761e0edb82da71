"""A draft model that generates one token after the other, without a round of the loop for each.

Its own texts need neither trees nor walks: whatever it generates comes next. So a token costs a
pass of the model and little else, if the target supports that (`Target.follow`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from paceline.chains import ChainEnd, ChainRequest
from paceline.kernels.likeliest import likeliest
from paceline.protocols import Target
from paceline.sampling import GREEDY, Sampler
from paceline.scores import Ranked, TokenScores

# A pass that reads more tokens counts as reading a prompt.
_FEW = 8


class Guess(NamedTuple):
    """A token that the draft model has drawn. chance: that the target draws it too, as the draft
    model estimates. others: the next best tokens there under the same noise, each with its chance,
    best first."""

    token: int
    chance: float
    others: tuple[tuple[int, float], ...] = ()


def guess_of(token: int, ranked: Ranked) -> Guess:
    """The guess of a drawn token. ranked: the likeliest ones there, usually including it."""
    chance = next((share for other, share in ranked if other == token), 0.0)
    others = [each for each in ranked if each[0] != token and each[1]]
    return Guess(token, chance, tuple(others))


class Said(NamedTuple):
    """One pass of a draft model. prefill: it also read a prompt."""

    guesses: Sequence[Guess]
    width: int
    seconds: float
    prefill: bool


class Speaker(ABC):
    """Runs a draft model on one text at a time."""

    @abstractmethod
    def start(self, text: list[int], references: Sequence[Sequence[int]], sampler: Sampler) -> None:
        """Begin a text. The list grows with every pass; whoever changes it calls `correct`."""

    @abstractmethod
    def correct(self, kept: int) -> None:
        """The text has changed after its first `kept` tokens."""

    @property
    @abstractmethod
    def unread(self) -> int:
        """Upper bound on tokens of the text that the next pass has to read besides its own."""

    @abstractmethod
    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """Continue the text, pass by pass, by `most` tokens, or fewer if `end` says so. The last
        pass may bring more, but never more than `room` in all. Empty if the text has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Release the text."""


class DraftChain(Speaker):
    """Generates what plain decoding of the draft model would.

    target: with `CHAINS`. vocab_size: of the model to draft for. others: runners-up to keep
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
        self._known = 0  # first tokens of the text, which the target has unchanged

    def start(self, text: list[int], references: Sequence[Sequence[int]], sampler: Sampler) -> None:
        """See `Speaker.start`. References are ignored."""
        self._context, self._sampler = text, sampler

    def correct(self, kept: int) -> None:
        """See `Speaker.correct`."""
        self._known = min(self._known, kept)

    @property
    def unread(self) -> int:
        """See `Speaker.unread`."""
        return len(self._context) - (0 if self._slot is None else self._known) - 1

    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """See `Speaker.say`: one token per pass."""
        passes = min(most, room)
        if end is not None:
            passes = min(passes, len(end.least))
        if passes < 1:
            return []
        began, context = self._clock(), self._context
        if self._slot is None:
            self._slot = self._target.open(context)
            self._known, reads = len(context), 1 + self._target.pending(self._slot)
        else:
            reads = len(context) - self._known
        guesses, seconds = list[Guess](), list[float]()
        if self._sampler.takes_likeliest:
            guesses, seconds = self._together(self._slot, passes, end)
        if not guesses:
            guesses, seconds = self._one_by_one(self._slot, passes, end)
        # Time outside the passes counts for the first: it is spent once.
        first = max(0.0, self._clock() - began - sum(seconds[1:]))
        said = [Said(guesses[:1], 1, first, reads > _FEW)]
        for guess, spent in zip(guesses[1:], seconds[1:], strict=True):
            said.append(Said((guess,), 1, spent, False))
        return said

    def _together(
        self, slot: int, passes: int, end: ChainEnd | None
    ) -> tuple[list[Guess], list[float]]:
        """The target's likeliest tokens as guesses, and the seconds of their passes, in one call;
        empty if the target does not offer that."""
        context = self._context
        wanted = ChainRequest(passes, 1 + self._others, self._vocab_size, end)
        found = self._target.generate_chain(slot, self._known, context[self._known :], wanted)
        if found is None:
            return [], []
        guesses = [guess_of(ranked[0][0], ranked) for ranked in found.ranked]
        context += [guess.token for guess in guesses]
        self._known = len(context) - 1
        return guesses, found.seconds

    def _one_by_one(
        self, slot: int, passes: int, end: ChainEnd | None
    ) -> tuple[list[Guess], list[float]]:
        """The sampler's guesses and the seconds of their passes, one call each."""
        guesses, seconds, context = list[Guess](), list[float](), self._context
        while len(guesses) < passes:
            began = self._clock()
            known = len(context)
            scores = self._target.follow(slot, self._known, context[self._known :])
            guesses.append(self._read(scores, context))
            self._known = known
            context.append(guesses[-1].token)
            seconds.append(self._clock() - began)
            if end is not None and not end.goes_on([guess.chance for guess in guesses]):
                break
        return guesses, seconds

    def stop(self) -> None:
        """See `Speaker.stop`."""
        if self._slot is not None:
            self._target.close(self._slot)
            self._slot = None

    def _read(self, scores: TokenScores, context: Sequence[int]) -> Guess:
        """The drawn token with its runners-up; for chances see `DraftRounds`."""
        drawn = self._sampler.decide_among(scores, context, self._vocab_size)
        numbers = drawn.numbers
        if not self._sampler.greedy:
            numbers = numbers * self._sampler.noise_scale
        places, shares = likeliest(numbers.astype(np.float32, copy=False)[None], 1 + self._others)
        ranked = [
            (drawn.token(place), share)
            for place, share in zip(places[0].tolist(), shares[0].tolist(), strict=True)
        ]
        return guess_of(ranked[0][0], ranked)
