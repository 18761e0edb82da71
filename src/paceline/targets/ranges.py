"""Where texts lie in a pool of cache slots: stretches of it, handed out and taken back."""

from __future__ import annotations

from bisect import insort

__all__ = ["Ranges"]


class Ranges:
    """Free and taken stretches of a pool that may grow.

    grain: all stretches begin at a multiple of it and are as long as one.

    size: slots of the pool.
    """

    def __init__(self, grain: int) -> None:
        self.grain = grain
        self.size = 0
        self._free: list[tuple[int, int]] = []  # (start, end), ascending, never touching

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return sum(end - start for start, end in self._free)

    def rounded(self, slots: int) -> int:
        """The length of the stretch that so many slots get."""
        return -(-slots // self.grain) * self.grain

    def take(self, slots: int) -> int | None:
        """The start of a free stretch with room for so many; None where there is none."""
        wanted = self.rounded(slots)
        for index, (start, end) in enumerate(self._free):
            if end - start >= wanted:
                self._cut(index, start + wanted, end)
                return start
        return None

    def extend(self, end: int, slots: int) -> bool:
        """Make a stretch that ends at `end` longer by room for so many, in place; False where what
        lies after it is taken."""
        wanted = self.rounded(slots)
        for index, (start, stop) in enumerate(self._free):
            if start == end and stop - start >= wanted:
                self._cut(index, start + wanted, stop)
                return True
        return False

    def give(self, start: int, slots: int) -> None:
        """Take a stretch back."""
        insort(self._free, (start, start + self.rounded(slots)))
        merged: list[tuple[int, int]] = []
        for begin, end in self._free:
            if merged and merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin, end))
        self._free = merged

    def grow(self, slots: int) -> None:
        """Add room at the end, so that `take` finds so many slots."""
        last = self._free[-1] if self._free else (self.size, self.size)
        free = self.size - last[0] if last[1] == self.size else 0
        more = self.rounded(max(0, slots - free))
        if more:
            self.size += more
            self.give(self.size - more, more)

    def _cut(self, index: int, start: int, end: int) -> None:
        self._free[index : index + 1] = [(start, end)] if start < end else []
