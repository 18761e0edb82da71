"""Times that are measured repeatedly, with outliers, and drafting time per text of a batch."""

from __future__ import annotations

from statistics import median_low

FIRST_TIMES = 5
"""Times whose median begins the average."""
_NO_OUTLIER = 3


class RunningTime:
    """The median of the first few times, then a running average in which an outlier counts at most
    twice the average. The third outlier in a row is none: the times start anew with it.

    value: in the unit of the times; None before the first.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._first: list[float] = []
        self._outliers = 0

    @property
    def count(self) -> int:
        """Times recorded, at most `FIRST_TIMES`."""
        return len(self._first)

    def add(self, value: float) -> float:
        """Add one more time; returns what is then known."""
        if self.value is not None and len(self._first) == FIRST_TIMES:
            bounded = self.bounded(value)
            self._outliers = self._outliers + 1 if value > bounded else 0
            if self._outliers < _NO_OUTLIER:
                self.value += (bounded - self.value) / 16
                return self.value
            self.learn_anew()
        self._first.append(value)
        self.value = median_low(self._first)
        return self.value

    def bounded(self, value: float) -> float:
        """This time, or twice the average if it is longer: an outlier."""
        return value if self.value is None else min(value, 2 * self.value + 1e-6)

    def learn_anew(self) -> None:
        """Start over: the next times replace what was known."""
        self._first, self._outliers = [], 0


class DraftingTime:
    """Milliseconds per text that a round takes outside the pass, with its drafter asked or resting;
    taken to be the same in a batch of any size."""

    def __init__(self) -> None:
        self._asked, self._resting = RunningTime(), RunningTime()

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
