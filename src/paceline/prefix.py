"""How much two texts have in common: what a cache may keep, and what was counted already."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["common_prefix"]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    size = min(len(one), len(other))
    # Mostly one text continues the other, and comparing slices is many times as fast as a loop.
    if list(one[:size]) == list(other[:size]):
        return size
    return next(index for index in range(size) if one[index] != other[index])
