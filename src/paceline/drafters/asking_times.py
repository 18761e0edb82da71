"""How long asking a source of `auto` takes, see `paceline.drafters.costly_sources`."""

from __future__ import annotations

from paceline.planning.running_time import FIRST_TIMES, RunningTime

__all__ = ["AskingTimes"]

_USUAL = 2
"""Times in a text that count as much as the usual time; only after the first few is it unused."""


class AskingTimes:
    """Milliseconds of asking, by class of confidence: drafts differ in length, and much is known
    already of a text that others are sure about."""

    def __init__(self) -> None:
        self._all = RunningTime()
        self._by_class: dict[int, RunningTime] = {}

    def bounded(self, milliseconds: float, place: int) -> float:
        """See `RunningTime.bounded`."""
        return self._of(place).bounded(milliseconds)

    def add(self, milliseconds: float, place: int) -> None:
        """Record the time of asking at a class of confidence."""
        self._all.add(milliseconds)
        self._by_class.setdefault(place, RunningTime()).add(milliseconds)

    def learn_anew(self) -> None:
        """See `RunningTime.learn_anew`."""
        self._all.learn_anew()
        for each in self._by_class.values():
            each.learn_anew()

    def of(self, place: int) -> float | None:
        """The time at a class of confidence; that over all classes while it is not known."""
        return self._of(place).value

    def instead_of(self, usual: float, here: float, place: int) -> float:
        """`here`, which these times came to, as far as they are enough to replace what is usual:
        one long draft does not make a text one of long drafts."""
        count = self._of(place).count
        share = 1.0 if count >= FIRST_TIMES else count / (count + _USUAL)
        return usual + (here - usual) * share

    def _of(self, place: int) -> RunningTime:
        return self._by_class.get(place, self._all)
