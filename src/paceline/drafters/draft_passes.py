"""What passes of a draft model bring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.sampling import Sampler

__all__ = ["Guess", "Said", "Speaker"]


@dataclass(frozen=True)
class Guess:
    """A token that the draft model has drawn.

    chance: that the target draws it too, by the draft model's own word.
    others: the next best tokens there under the same noise, each with its chance, best first.
    """

    token: int
    chance: float
    others: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Said:
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
        """Behind its first `kept` tokens the text is another one now."""

    @property
    @abstractmethod
    def unread(self) -> int:
        """Tokens of the text that the next pass has to read besides its own; at most so many."""

    @abstractmethod
    def say(self, room: int, passes: int = 1) -> Sequence[Said]:
        """Go on with the text, by `room` tokens at most: in one pass, or in up to `passes` where
        these are had for less together. Nothing where it has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Let go of the text."""
