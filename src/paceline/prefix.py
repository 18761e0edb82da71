"""The prefix that two texts share: what a cache may keep, and what was counted already."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    # Usually one text continues the other, so the first comparison is of all tokens, as slices.
    middle = high
    while low < high:
        if list(one[low:middle]) == list(other[low:middle]):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low
