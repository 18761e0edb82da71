"""Windows of tokens: stretches of texts, packed so that little of a batch is padding.

A stretch holds some places of a text, the tokens before them as context, and those after them that
guesses are compared with. In an epoch every place of every text is in one stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from paceline.training.dataset import Text
from paceline.training.settings import TrainerSettings

__all__ = ["Rows", "Stretch", "Window", "pack", "stretches"]

_OPEN = 32  # windows filled at a time


@dataclass(frozen=True)
class Stretch:
    """Tokens `begin` to `end` of the text with number `text`; `places` are learned from."""

    text: int
    begin: int
    end: int
    places: range

    def __len__(self) -> int:
        return self.end - self.begin


Window = list[Stretch]
"""Stretches side by side in a row."""


def stretches(texts: Sequence[Text], settings: TrainerSettings) -> list[Stretch]:
    """Cut all texts into stretches, each no longer than a window."""
    found = []
    for number, text in enumerate(texts):
        place = text.first
        while place < text.places.stop:
            begin = max(text.begin, place + 1 - settings.context)
            # The last place has `ahead` tokens after it, unless the text ends earlier.
            stop = min(text.places.stop, begin + settings.length - settings.ahead)
            end = min(len(text.tokens), stop + settings.ahead)
            found.append(Stretch(number, begin, end, range(place, stop)))
            place = stop
    return found


def pack(found: Sequence[Stretch], length: int) -> list[Window]:
    """Pack stretches in this order into windows of at most `length` tokens: each goes into the
    open window that it fills best."""
    done: list[Window] = []
    opened: list[tuple[int, Window]] = []  # with the room left
    for stretch in found:
        fitting = [entry for entry in opened if entry[0] >= len(stretch)]
        if fitting:
            best = min(fitting, key=lambda entry: entry[0])
            opened.remove(best)
            opened.append((best[0] - len(stretch), [*best[1], stretch]))
        else:
            opened.append((length - len(stretch), [stretch]))
        if len(opened) > _OPEN:
            fullest = min(opened, key=lambda entry: entry[0])
            opened.remove(fullest)
            done.append(fullest[1])
    return done + [window for _, window in opened]


class Rows:
    """Endless windows of some texts: every epoch holds all texts, packed anew."""

    def __init__(self, texts: Sequence[Text], settings: TrainerSettings, mark: str) -> None:
        self._all = stretches(texts, settings)
        self._length = settings.length
        self._mark = f"{settings.seed} {mark}"
        self._first = 0  # of the current epoch
        self._epochs = count()
        self._epoch: list[Window] = []

    def at(self, first: int, size: int) -> list[Window]:
        """Windows first, first + 1, … of the sequence; `first` must not fall from call to call."""
        found = []
        for number in range(first, first + size):
            while number >= self._first + len(self._epoch):
                self._first += len(self._epoch)
                self._epoch = self._shuffled(next(self._epochs))
            found.append(self._epoch[number - self._first])
        return found

    def _shuffled(self, epoch: int) -> list[Window]:
        random = Random(f"{self._mark} {epoch}")  # noqa: S311 - the same for everyone
        order = list(self._all)
        random.shuffle(order)
        windows = pack(order, self._length)
        random.shuffle(windows)
        return windows
