"""How much two texts have in common: what a cache may keep, and what was counted already."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["common_prefix"]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(one), len(other))
    # Mostly one continues the other, so all is compared first; slices compare without a loop here.
    middle = high
    while low < high:
        if list(one[low:middle]) == list(other[low:middle]):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low
