"""How likely guesses are to be right, before anything is known about the text: weights of trees.

The constants are close to what n-grams and copies reached over recorded answers of thirteen kinds
(docs/planning.md). They only need to rank guesses: planners correct weights by what comes true.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tree import Tree

__all__ = ["FOLLOWER_DOUBT", "copied_chain", "follower_confidence"]

FOLLOWER_DOUBT = 3.0
_COPY_DOUBT = 5.0


def follower_confidence(run: int, seen: int, total: int) -> float:
    """The chance that a token follows a run of `run` tokens, as it did `seen` times of `total`, all
    at least 1: one sighting after one token says little, after four tokens much."""
    return seen / total * seen / (seen + FOLLOWER_DOUBT / run**2)


def copied_chain(tokens: Sequence[int], matched: int) -> Tree:
    """What followed elsewhere after the last `matched` tokens of the text, as a chain.

    If a token is right, the next is likelier than it was: the match is longer.
    """
    weights: list[float] = []
    path_chance = 1.0
    for length in range(matched, matched + len(tokens)):
        path_chance *= length**2 / (length**2 + _COPY_DOUBT)
        weights.append(path_chance)
    return Tree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(weights) or None)
