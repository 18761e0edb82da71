"""How likely guesses are to be right, before anything is known about the text: weights of trees.

The numbers are round ones that lie near what n-grams and copies reached over recorded answers of
thirteen kinds (docs/planning.md). They need not be right: whoever plans with weights corrects them
by what comes true. They need to tell better guesses from worse ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tree import Tree

__all__ = ["FOLLOWER_DOUBT", "copied_chain", "follower_confidence"]

FOLLOWER_DOUBT = 3.0
_COPY_DOUBT = 5.0


def follower_confidence(run: int, seen: int, total: int) -> float:
    """That a token follows a run of `run` tokens, which it did `seen` times of `total`.

    All three are at least 1. The share of the times, less a doubt that goes with every sighting and
    with the square of the run: one sighting after one token is little, after four much.
    """
    return seen / total * seen / (seen + FOLLOWER_DOUBT / run**2)


def copied_chain(tokens: Sequence[int], matched: int) -> Tree:
    """What followed elsewhere after the last `matched` tokens of the text, as a chain.

    Each token is likelier than the one before it, where that one is right: the match is longer.
    """
    weights: list[float] = []
    path_chance = 1.0
    for length in range(matched, matched + len(tokens)):
        path_chance *= length**2 / (length**2 + _COPY_DOUBT)
        weights.append(path_chance)
    return Tree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(weights) or None)
