"""What passes of a draft model bring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from paceline.chains import ChainEnd
from paceline.sampling import Sampler
from paceline.scores import Ranked

__all__ = ["Guess", "Said", "Speaker", "guess_of"]


class Guess(NamedTuple):
    """A token that the draft model has drawn.

    chance: that the target draws it too, by the draft model's own word.
    others: the next best tokens there under the same noise, each with its chance, best first.
    """

    token: int
    chance: float
    others: tuple[tuple[int, float], ...] = ()


def guess_of(token: int, ranked: Ranked) -> Guess:
    """A token that was drawn, and the likeliest ones there, of which it is one as a rule."""
    chance = next((share for other, share in ranked if other == token), 0.0)
    others = [each for each in ranked if each[0] != token and each[1]]
    return Guess(token, chance, tuple(others))


class Said(NamedTuple):
    """One pass of a draft model: its guesses, its width, the seconds that it took, and whether it
    also read a prompt."""

    guesses: Sequence[Guess]
    width: int
    seconds: float
    prefill: bool


class Speaker(ABC):
    """Runs a draft model on one text at a time."""

    @abstractmethod
    def start(
        self, context: Sequence[int], references: Sequence[Sequence[int]], sampler: Sampler
    ) -> list[int]:
        """A text begins, whose tokens are drawn with this sampler. Returns its tokens: the list
        grows by all that is said, and whoever changes it tells `correct`."""

    @abstractmethod
    def correct(self, kept: int) -> None:
        """After its first `kept` tokens the text is another one now."""

    @property
    @abstractmethod
    def unread(self) -> int:
        """Tokens of the text that the next pass has to read besides its own; at most so many."""

    @abstractmethod
    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """Go on with the text, pass by pass, until there are `most` tokens, or fewer where `end` says
        so; the last pass may bring more of them, but never more than `room` in all. Nothing where
        the text has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Let go of the text."""
