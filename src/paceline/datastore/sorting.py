"""Places of a text, sorted by what stands before them: a suffix array of the text read backwards.

A place is the gap before a token, called by that token's number. Sorted like this, all places
after the same tokens are neighbours, however many tokens these are, and those after the longest
match are found by one binary search.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["BORDER", "LONGEST", "PROMPT_TOKENS", "Int32", "is_in_order", "sort_places"]

Int32 = NDArray[np.int32]

BORDER = -1
"""Stands between documents, and matches nothing."""

LONGEST = 32
"""So many tokens before a place count; places after the same ones come as the text has them. Beyond
a border nothing counts."""

PROMPT_TOKENS = 4
"""Of a prompt are kept with its answer, so that the beginnings of answers are found."""


def sort_places(tokens: Int32) -> Int32:
    """The places of a text [n] that have a token on either side, in their order.

    Takes about 60 bytes a token while it runs.
    """
    count = len(tokens)
    # Of place p: the number of the tokens before it among all such runs, in their order. Runs
    # begin with one token; two neighbouring runs make one of twice the length.
    ranks = np.zeros(count + 1, dtype=np.int64)
    np.add(tokens, 1, out=ranks[1:])
    # So many tokens stand between a place and the border before it.
    borders = np.where(ranks == 0, np.arange(count + 1, dtype=np.int32), np.int32(0))
    within = np.arange(count + 1, dtype=np.int32) - np.maximum.accumulate(borders)
    distinct, length = int(ranks.max(initial=0)) + 1, 1
    while length < LONGEST and distinct <= count:
        earlier = np.zeros(count + 1, dtype=np.int64)
        if length <= count:
            earlier[length:] = ranks[: count + 1 - length]
        earlier[within < length] = 0  # beyond a border are borders, which come first of all
        ranks, distinct = _numbered(ranks * distinct + earlier)
        length *= 2
    order = np.argsort(ranks, kind="stable")
    order = order[is_in_order(tokens, order)]
    return order.astype(np.int32)


def is_in_order(tokens: Int32, places: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which of some places from 0 to n of a text [n] have a token on either side."""
    inside = (places > 0) & (places < len(tokens))
    near = np.where(inside, places, 0)
    return inside & (tokens[near] >= 0) & (tokens[near - 1] >= 0) if len(tokens) else inside


def _numbered(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """The number of each key among the distinct ones, and how many these are."""
    order = np.argsort(keys)
    sorted_keys = keys[order]
    is_new = np.empty(len(keys), dtype=np.bool_)
    is_new[:1] = False
    np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=is_new[1:])
    numbers = np.cumsum(is_new)
    ranks = np.empty_like(keys)
    ranks[order] = numbers
    return ranks, int(numbers[-1]) + 1
