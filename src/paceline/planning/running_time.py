"""A time that is measured repeatedly, with outliers."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FIRST_TIMES", "RunningTime"]

FIRST_TIMES = 5
"""Times whose median begins the average."""
_NO_OUTLIER = 3


@dataclass
class RunningTime:
    """The median of the first few times, then a running average in which an outlier counts at most
    twice the average. The third outlier in a row is none: the times start anew with it.

    value: in the unit of the times; None before the first.
    """

    value: float | None = None
    _first: list[float] = field(default_factory=list)
    _outliers: int = 0

    @property
    def count(self) -> int:
        """Times recorded, at most `FIRST_TIMES`."""
        return len(self._first)

    def add(self, value: float) -> None:
        """Add one more time."""
        if self.value is not None and len(self._first) == FIRST_TIMES:
            bounded = self.bounded(value)
            self._outliers = self._outliers + 1 if value > bounded else 0
            if self._outliers < _NO_OUTLIER:
                self.value += (bounded - self.value) / 16
                return
            self.learn_anew()
        self._first.append(value)
        self.value = sorted(self._first)[(len(self._first) - 1) // 2]

    def bounded(self, value: float) -> float:
        """This time, or twice the average if it is longer: an outlier."""
        return value if self.value is None else min(value, 2 * self.value + 1e-6)

    def learn_anew(self) -> None:
        """Start over: the next times replace what was known."""
        self._first, self._outliers = [], 0
