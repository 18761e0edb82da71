"""Chains of guesses that a target generates in one call: the request, where it ends, the result."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.scores import Ranked


class ChanceTable:
    """How likely guesses are to be right, by their share in the model's softmax and their depth.

    Each class of shares and depths has a linear function of the share.

    borders: ascending, where each class of shares after the first begins. depths: the same for
    depths, >= 2. low, high: shares are clamped to this range. longest: greatest depth asked for.

    trust: factor on a clamped share; the product is at most `high`.
    """

    def __init__(
        self, borders: Sequence[float], depths: Sequence[int], low: float, high: float, longest: int
    ) -> None:
        self.trust, self.low, self.high = 1.0, low, high
        self.borders = array("d", borders)
        self.columns = 1 + len(borders)
        self.lines = array("d", [0.0, 1.0] * (self.columns * (1 + len(depths))))
        # For depth 1, 2, …
        self.rows = array("q", [bisect_right(depths, 1 + at) for at in range(longest)])

    def chance(self, share: float, depth: int) -> float:
        """Chance that a guess with this share at `depth`, 1 to `longest`, is right if the guess
        before it is."""
        claim = min(self.high, max(self.low, share))
        column = bisect_right(self.borders, claim)
        at = 2 * (self.rows[depth - 1] * self.columns + column)
        return self.lines[at] + self.lines[at + 1] * min(self.high, claim * self.trust)

    def put(self, column: int, row: int, offset: float, slope: float) -> None:
        """Set the linear function for a class of shares at a class of depths."""
        at = 2 * (row * self.columns + column)
        self.lines[at], self.lines[at + 1] = offset, slope


@dataclass(frozen=True)
class ChainEnd:
    """Where a chain of guesses ends: after a doubtful guess, or once the whole chain is doubtful.

    share: a token with a smaller share is the last. least: float64, entry n - 1 for a chain of n
    guesses: it ends if the chance that all are right is smaller, and at len(least) guesses.
    chances: of single guesses. before: guesses before the chain, all right with chance
    `path_chance`. worth: the chance below which a row for a guess costs more than it gains; in a
    tree, whatever follows such a guess is not worth its row either.
    """

    share: float
    least: array[float]
    chances: ChanceTable
    before: int = 0
    path_chance: float = 1.0
    worth: float = 0.0

    def goes_on(self, shares: Sequence[float]) -> bool:
        """Whether more guesses are wanted after those with these shares, at least one."""
        if len(shares) >= len(self.least) or min(shares) < self.share:
            return False
        path_chance = self.path_chance
        for depth, share in enumerate(shares, start=self.before + 1):
            path_chance *= self.chances.chance(share, depth)
        return path_chance >= self.least[len(shares) - 1]


def certain_end(share: float, most: int) -> ChainEnd:
    """The end after the first token with a smaller share, or after `most` tokens."""
    return ChainEnd(share, array("d", bytes(8 * most)), ChanceTable((), (), 0.0, 1.0, most))


@dataclass(frozen=True)
class ChainRequest:
    """Successive passes, each of which reads the likeliest token of the one before.

    passes: most passes, >= 1. most: ids wanted from each. known: only ids below this count.
    end: where to stop early; None for after the last pass.
    """

    passes: int
    most: int
    known: int
    end: ChainEnd | None = None


@dataclass(frozen=True)
class ChainFound:
    """What the passes found.

    ranked: for each pass the likeliest ids, fewer if there are fewer, with their shares in the
    softmax over all known ids. With too few usable scores (-inf) the last have share 0; with NaN,
    all have.
    seconds: time of each pass.
    """

    ranked: list[Ranked]
    seconds: list[float]
