"""Allocate stretches of a pool of cache slots to texts."""

from __future__ import annotations

from bisect import insort

__all__ = ["Ranges"]


class Ranges:
    """Free and taken stretches of a pool that can grow.

    grain: starts and lengths of all stretches are multiples of it.

    size: slots of the pool.
    """

    def __init__(self, grain: int) -> None:
        self.grain = grain
        self.size = 0
        self._free: list[tuple[int, int]] = []  # (start, end), ascending, never adjacent

    @property
    def free(self) -> int:
        """Number of free slots."""
        return sum(end - start for start, end in self._free)

    def rounded(self, slots: int) -> int:
        """Length of a stretch for `slots` slots."""
        return -(-slots // self.grain) * self.grain

    def take(self, slots: int) -> int | None:
        """Take a stretch with room for `slots`; returns its start, None if none is free."""
        wanted = self.rounded(slots)
        for index, (start, end) in enumerate(self._free):
            if end - start >= wanted:
                self._cut(index, start + wanted, end)
                return start
        return None

    def extend(self, end: int, slots: int) -> bool:
        """Extend a stretch that ends at `end` in place by room for `slots`; False if what follows
        it is taken."""
        wanted = self.rounded(slots)
        for index, (start, stop) in enumerate(self._free):
            if start == end and stop - start >= wanted:
                self._cut(index, start + wanted, stop)
                return True
        return False

    def give(self, start: int, slots: int) -> None:
        """Free a stretch."""
        insort(self._free, (start, start + self.rounded(slots)))
        merged: list[tuple[int, int]] = []
        for begin, end in self._free:
            if merged and merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin, end))
        self._free = merged

    def grow(self, slots: int) -> None:
        """Grow the pool at its end, so that `take` finds `slots` slots."""
        more = self.size_after(slots) - self.size
        if more:
            self.size += more
            self.give(self.size - more, more)

    def size_after(self, slots: int) -> int:
        """Size of the pool after `grow(slots)`."""
        last = self._free[-1] if self._free else (self.size, self.size)
        free = self.size - last[0] if last[1] == self.size else 0
        return self.size + self.rounded(max(0, slots - free))

    def _cut(self, index: int, start: int, end: int) -> None:
        self._free[index : index + 1] = [(start, end)] if start < end else []
