"""What passes of a draft model yield."""

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

    chance: that the target draws it too, as the draft model estimates.
    others: the next best tokens there under the same noise, each with its chance, best first.
    """

    token: int
    chance: float
    others: tuple[tuple[int, float], ...] = ()


def guess_of(token: int, ranked: Ranked) -> Guess:
    """The guess of a drawn token. ranked: the likeliest ones there, usually including it."""
    chance = next((share for other, share in ranked if other == token), 0.0)
    others = [each for each in ranked if each[0] != token and each[1]]
    return Guess(token, chance, tuple(others))


class Said(NamedTuple):
    """One pass of a draft model: its guesses, its width, its seconds, and whether it also read a
    prompt."""

    guesses: Sequence[Guess]
    width: int
    seconds: float
    prefill: bool


class Speaker(ABC):
    """Runs a draft model on one text at a time."""

    @abstractmethod
    def start(self, text: list[int], references: Sequence[Sequence[int]], sampler: Sampler) -> None:
        """Begin a text with these tokens, drawn with this sampler. The list grows with every pass,
        and whoever changes it calls `correct`."""

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
