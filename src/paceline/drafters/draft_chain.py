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
from paceline.records import TextStart
from paceline.sampling import GREEDY
from paceline.scores import Ranked

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
        self._started = TextStart((0,))
        self._sampler = GREEDY
        self._known = 0  # first tokens of the text, unchanged since the last pass

    def start(self, text: list[int], started: TextStart) -> None:
        """Begin a text, drawn with the noise of the one that `started`. The list grows with every
        pass; whoever changes it calls `correct`."""
        self._text, self._started, self._known = text, started, 0
        self._sampler = (started.sampler or GREEDY).coupled()

    def correct(self, kept: int) -> None:
        """The text has changed after its first `kept` tokens."""
        self._known = min(self._known, kept, len(self._text) - 1)

    @property
    def unread(self) -> int:
        """Upper bound on tokens of the text that the next pass has to read besides its own."""
        return max(0, len(self._text) - 1 - self._known)

    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """Continue the text, pass by pass, by `most` tokens, or fewer if `end` says so. The last
        pass may bring more, but never more than `room` in all. Empty if the text has ended."""
        passes, chances = list[Said](), list[float]()
        while len(chances) < min(room, most) and (said := self._pass(room - len(chances))):
            passes.append(said)
            chances += [guess.chance for guess in said.guesses]
            if end is not None and not end.goes_on(chances):
                break
        return passes

    @abstractmethod
    def _pass(self, room: int) -> Said | None:
        """Continue the text by at most `room` tokens, >= 1, in one pass; None if it has ended."""

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
        places, shares = likeliest(scores, 1 + self._others)
        return [
            [*zip(*row, strict=True)] for row in zip(places.tolist(), shares.tolist(), strict=True)
        ]


class DraftChain(Speaker):
    """Generates what plain decoding of the draft model would.

    target: with `CHAINS`. vocab_size: of the model to draft for. others, clock: see `Speaker`.
    """

    def __init__(
        self, target: Target, vocab_size: int, others: int, clock: Callable[[], float]
    ) -> None:
        super().__init__(target, others, clock)
        self._vocab_size = vocab_size
        self._slot: int | None = None

    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """See `Speaker.say`: one token per pass."""
        together = self._together(min(room, most), end) if self._sampler.takes_likeliest else []
        return together or super().say(room, most, end)

    def _together(self, passes: int, end: ChainEnd | None) -> Sequence[Said]:
        """The target's likeliest tokens as guesses, in one call; empty if the target does not offer
        that."""
        began, slot, text = self._clock(), self._opened(), self._text
        passes = passes if end is None else min(passes, len(end.least))
        wanted = ChainRequest(passes, 1 + self._others, self._vocab_size, end)
        new = text[self._known :]
        found = self._target.generate_chain(slot, self._known, new, wanted)
        if found is None:
            return []
        guesses = [guess_of(ranked[0][0], ranked) for ranked in found.ranked]
        text += [guess.token for guess in guesses]
        self._known = len(text) - 1
        # Time outside the passes counts for the first: it is spent once.
        first = max(0.0, self._clock() - began - sum(found.seconds[1:]))
        return [
            Said((guess,), 1, seconds, place == 0 and len(new) > _FEW)
            for place, (guess, seconds) in enumerate(zip(guesses, [first, *found.seconds[1:]]))
        ]

    def _pass(self, room: int) -> Said:
        """See `Speaker`: the sampler's guess."""
        began, slot, text = self._clock(), self._opened(), self._text
        new = text[self._known :]
        scores = self._target.follow(slot, self._known, new)
        drawn = self._sampler.decide_among(scores, text, self._vocab_size)
        (best,) = self._ranked(drawn.numbers[None])
        ranked = [(drawn.token(place), share) for place, share in best]
        guess = guess_of(ranked[0][0], ranked)
        self._known = len(text)
        text.append(guess.token)
        return Said((guess,), 1, self._clock() - began, len(new) > _FEW)

    def _opened(self) -> int:
        """The text's slot in the target, which has the `_known` first tokens."""
        if self._slot is None:
            self._slot = self._target.open(self._text)
            self._known = len(self._text) - 1 - self._target.pending(self._slot)
        return self._slot

    def stop(self) -> None:
        if self._slot is not None:
            self._target.close(self._slot)
            self._slot = None
