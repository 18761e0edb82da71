"""Measure how much of a text repeats itself.

Greedy output of small models often loops, and every method that copies from the text guesses loops
perfectly. Results are shown with and without such texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_RUN = 20
LOOPING = 0.2
"""Least share for a text to count as looping; code sometimes repeats a line of twenty tokens."""


def loop_share(tokens: Sequence[int]) -> float:
    """The share of tokens inside a run of twenty that occurs more than once in the text."""
    runs = [tuple(tokens[begin : begin + _RUN]) for begin in range(len(tokens) - _RUN + 1)]
    often = Counter(runs)
    inside = {
        begin + step for begin, run in enumerate(runs) if often[run] > 1 for step in range(_RUN)
    }
    return len(inside) / len(tokens) if tokens else 0.0
