"""What drafting takes per text, told from the rounds of a batch in which some texts are asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.planning.running_time import RunningTime

__all__ = ["DraftingTime"]


@dataclass
class DraftingTime:
    """Milliseconds that a text's share of a round takes beside the pass, if its drafter is asked
    and if it rests; the same in a batch of any size."""

    _asked: RunningTime = field(default_factory=RunningTime)
    _resting: RunningTime = field(default_factory=RunningTime)

    @property
    def price(self) -> float:
        """Milliseconds more that a round takes, per text, when its drafter is asked."""
        return max(0.0, (self._asked.value or 0.0) - (self._resting.value or 0.0))

    def learn_anew(self) -> None:
        """A text is asked again after a rest: what that takes now is not known."""
        self._asked.learn_anew()

    def add(self, milliseconds: float, asked: int, resting: int) -> None:
        """A round took so long beside its pass, for so many texts of each kind. Of mixed rounds the
        texts that were asked are owed what resting ones are not known to take."""
        if not asked:
            self._resting.add(milliseconds / resting)
        elif not resting:
            self._asked.add(milliseconds / asked)
        elif self._resting.value is not None:
            left = milliseconds - resting * self._resting.value
            self._asked.add(max(0.0, left) / asked)
