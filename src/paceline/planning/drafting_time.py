"""Drafting time per text, inferred from rounds of a batch in which some drafters are asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.planning.running_time import RunningTime

__all__ = ["DraftingTime"]


@dataclass
class DraftingTime:
    """Milliseconds per text that a round takes outside the pass, with its drafter asked or resting;
    taken to be the same in a batch of any size."""

    _asked: RunningTime = field(default_factory=RunningTime)
    _resting: RunningTime = field(default_factory=RunningTime)

    @property
    def price(self) -> float:
        """Extra milliseconds of a round per text whose drafter is asked."""
        return max(0.0, (self._asked.value or 0.0) - (self._resting.value or 0.0))

    def price_of(self, milliseconds: float, asked: int, resting: int) -> float:
        """The same of one round, at most twice as much; see `add`. Drafts differ in length, so a
        text is judged by its own: those of earlier texts may have been longer."""
        usual = self._resting.value or 0.0
        own = (milliseconds - resting * usual) / asked - usual if asked else 0.0
        return min(max(0.0, own), 2 * self.price)

    def learn_anew(self) -> None:
        """Relearn the time of asking: a drafter is asked again after a rest."""
        self._asked.learn_anew()

    def add(self, milliseconds: float, asked: int, resting: int) -> None:
        """Record a round's time outside its pass, and how many drafters were asked or rested. In a
        mixed round, asked ones account for all but the known time of resting ones."""
        if not asked:
            self._resting.add(milliseconds / resting)
        elif not resting:
            self._asked.add(milliseconds / asked)
        elif self._resting.value is not None:
            left = milliseconds - resting * self._resting.value
            self._asked.add(max(0.0, left) / asked)
