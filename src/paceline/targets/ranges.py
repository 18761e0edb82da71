"""Allocate stretches of a pool of cache slots to texts."""

from __future__ import annotations

from bisect import insort


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

    def take(self, slots: int, at: int | None = None) -> int | None:
        """Take a stretch with room for `slots`, anywhere or `at` this slot; returns its start, None
        if none is free."""
        wanted = self.rounded(slots)
        for index, (start, end) in enumerate(self._free):
            if end - start >= wanted and at in (None, start):
                rest = [(start + wanted, end)] if start + wanted < end else []
                self._free[index : index + 1] = rest
                return start
        return None

    def give(self, start: int, slots: int) -> None:
        """Free a stretch, which may be empty."""
        if not slots:
            return
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
        before, self.size = self.size, self.size_after(slots)
        self.give(before, self.size - before)

    def size_after(self, slots: int) -> int:
        """Size of the pool after `grow(slots)`."""
        last = self._free[-1] if self._free else (self.size, self.size)
        free = self.size - last[0] if last[1] == self.size else 0
        return self.size + self.rounded(max(0, slots - free))
