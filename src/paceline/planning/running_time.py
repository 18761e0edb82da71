"""A time that is measured repeatedly, with outliers."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["RunningTime"]

_FIRST_TIMES = 5


@dataclass
class RunningTime:
    """The median of the first few times, then a running average in which an outlier counts at most
    twice the average.

    value: in the unit of the times; None before the first.
    """

    value: float | None = None
    _first: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """Add one more time."""
        if self.value is None or len(self._first) < _FIRST_TIMES:
            self._first.append(value)
            self.value = sorted(self._first)[(len(self._first) - 1) // 2]
        else:
            self.value += (min(value, 2 * self.value + 1e-6) - self.value) / 16

    def learn_anew(self) -> None:
        """Start over: the next times replace what was known."""
        self._first = []
