"""Places of a text, sorted by the tokens before them: a suffix array of the text read backwards.

A place is the gap before a token, named by that token's index. In this order, all places after
the same tokens are neighbours, whatever the number of tokens, and one binary search finds those
after the longest match.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]

BORDER = -1
"""Separates documents, and matches nothing."""

LONGEST = 32
"""Most tokens before a place that count, up to a border; places that tie keep the order of the
text."""

PROMPT_TOKENS = 4
"""Last tokens of a prompt kept with its answer, so that lookups find how answers begin."""


def sort_places(tokens: Int32) -> Int32:
    """Sort the places of a text [n] that have a token on either side.

    Uses about 60 bytes of memory per token.
    """
    count = len(tokens)
    # ranks[p]: rank of the run of tokens before place p among all runs of that length. Runs start
    # with one token; two neighbouring runs make one of twice the length.
    ranks = np.zeros(count + 1, dtype=np.int64)
    np.add(tokens, 1, out=ranks[1:], dtype=np.int64)
    # within[p]: tokens between place p and the border before it.
    borders = np.where(ranks == 0, np.arange(count + 1, dtype=np.int32), np.int32(0))
    within = np.arange(count + 1, dtype=np.int32) - np.maximum.accumulate(borders)
    above, length = int(ranks.max(initial=0)) + 1, 1  # above all ranks; in the end, their number
    while length < LONGEST:
        earlier = np.zeros(count + 1, dtype=np.int64)
        if length <= count:
            earlier[length:] = ranks[: count + 1 - length]
        earlier[within < length] = 0  # beyond a border everything is a border, which sorts first
        ranks, above = _numbered(ranks * above + earlier)
        length *= 2
        if above > count:  # no two are equal
            break
    order = np.argsort(ranks, kind="stable")
    order = order[is_in_order(tokens, order)]
    return order.astype(np.int32)


def is_in_order(tokens: Int32, places: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Mark the places, each from 0 to n, of a text [n] that have a token on either side."""
    inside = (places > 0) & (places < len(tokens))
    near = np.where(inside, places, 0)
    return inside & (tokens[near] >= 0) & (tokens[near - 1] >= 0) if len(tokens) else inside


def _numbered(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return the rank of each key among the distinct keys, and the number of distinct keys."""
    order = np.argsort(keys)
    sorted_keys = keys[order]
    is_new = np.empty(len(keys), dtype=np.bool_)
    is_new[:1] = False
    np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=is_new[1:])
    numbers = np.cumsum(is_new)
    ranks = np.empty_like(keys)
    ranks[order] = numbers
    return ranks, int(numbers[-1]) + 1
