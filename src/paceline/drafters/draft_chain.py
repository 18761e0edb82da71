"""A draft model that generates one token after the other, without a round of the loop for each.

Its own texts need neither trees nor walks: whatever it generates comes next. So a token costs a
pass of the model and little else, if the target supports that (`Target.follow`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    """Runs a draft model on one text at a time.

    others: runners-up to keep per guess. clock: seconds.
    """

    def __init__(self, target: Target, others: int, clock: Callable[[], float]) -> None:
        self._target, self._others, self._clock = target, others, clock
        self._text: list[int] = []
        self._references: Sequence[Sequence[int]] = ()
        self._sampler = GREEDY
        self._known = 0  # first tokens of the text, unchanged since the last pass

    def start(self, text: list[int], references: Sequence[Sequence[int]], sampler: Sampler) -> None:
        """Begin a text. The list grows with every pass; whoever changes it calls `correct`."""
        self._text, self._references, self._sampler = text, references, sampler
        self._known = 0

    def correct(self, kept: int) -> None:
        """The text has changed after its first `kept` tokens."""
        self._known = min(self._known, kept, len(self._text) - 1)

    @property
    def unread(self) -> int:
        """Upper bound on tokens of the text that the next pass has to read besides its own."""
        return max(0, len(self._text) - 1 - self._known)

    @abstractmethod
    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """Continue the text, pass by pass, by `most` tokens, or fewer if `end` says so. The last
        pass may bring more, but never more than `room` in all. Empty if the text has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Release the text."""

    def _ranked(self, scores: NDArray[np.floating[Any]]) -> list[list[tuple[int, float]]]:
        """The likeliest columns of each row of scores [rows, columns], with their chances.

        Chances are the softmax of the scores whose largest was drawn, in the scale of the logits:
        logits + `noise_scale` x noise. At temperature 0 that is the model's own probability. With
        noise it says how far ahead of the others the token is, and so how much the target's logits
        may differ without drawing another one.
        """
        if not self._sampler.greedy:
            scores = scores * self._sampler.noise_scale
        # Only a few tokens: a softmax of all would take longer than the model's pass.
        places, shares = likeliest(scores.astype(np.float32, copy=False), 1 + self._others)
        return [
            [*zip(*row, strict=True)] for row in zip(places.tolist(), shares.tolist(), strict=True)
        ]


class DraftChain(Speaker):
    """Generates what plain decoding of the draft model would.

    target: with `CHAINS`. vocab_size: of the model to draft for. others: runners-up to keep
    per guess. clock: seconds.
    """

    def __init__(
        self, target: Target, vocab_size: int, others: int, clock: Callable[[], float]
    ) -> None:
        super().__init__(target, others, clock)
        self._vocab_size = vocab_size
        self._slot: int | None = None

    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """See `Speaker.say`: one token per pass."""
        passes = min(most, room)
        if end is not None:
            passes = min(passes, len(end.least))
        if passes < 1:
            return []
        began, context = self._clock(), self._text
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
        seconds[0] = max(0.0, self._clock() - began - sum(seconds[1:]))
        return [
            Said((guess,), 1, spent, place == 0 and reads > _FEW)
            for place, (guess, spent) in enumerate(zip(guesses, seconds, strict=True))
        ]

    def _together(
        self, slot: int, passes: int, end: ChainEnd | None
    ) -> tuple[list[Guess], list[float]]:
        """The target's likeliest tokens as guesses, and the seconds of their passes, in one call;
        empty if the target does not offer that."""
        context = self._text
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
        guesses, seconds, context = list[Guess](), list[float](), self._text
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
        """The drawn token with its runners-up."""
        drawn = self._sampler.decide_among(scores, context, self._vocab_size)
        (best,) = self._ranked(drawn.numbers[None])
        ranked = [(drawn.token(place), share) for place, share in best]
        return guess_of(ranked[0][0], ranked)
