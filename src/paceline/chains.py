"""Chains of guesses that a target finds in one call: what is asked, where they end, what was found."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.scores import Ranked

__all__ = ["ChainEnd", "ChainFound", "ChainRequest", "ChanceTable", "certain_end"]


class ChanceTable:
    """How likely guesses are to be right, by their share in the model's softmax and their depth.

    A line for each class of shares and depths. borders: ascending, where the other classes of shares
    begin; depths: the same of depths, >= 2. low, high: shares count as no less and no more, and
    chances are at most `high`. longest: depths that are asked for at most.

    trust: shares are multiplied by that first.
    """

    def __init__(
        self,
        borders: Sequence[float],
        depths: Sequence[int],
        low: float,
        high: float,
        longest: int,
    ) -> None:
        self.trust, self.low, self.high = 1.0, low, high
        self.borders = array("d", borders)
        self.columns = 1 + len(borders)
        self.lines = array("d", [0.0, 1.0] * (self.columns * (1 + len(depths))))
        # Of depth 1, 2, …
        self.rows = array("q", [bisect_right(depths, 1 + at) for at in range(longest)])

    def chance(self, share: float, depth: int) -> float:
        """Of a guess with this share at `depth`, from 1 to `longest`, where the one before is
        right."""
        claim = min(self.high, max(self.low, share))
        column = bisect_right(self.borders, claim)
        at = 2 * (self.rows[depth - 1] * self.columns + column)
        return self.lines[at] + self.lines[at + 1] * min(self.high, claim * self.trust)

    def put(self, column: int, row: int, offset: float, slope: float) -> None:
        """The line of a class of shares at a class of depths."""
        at = 2 * (row * self.columns + column)
        self.lines[at], self.lines[at + 1] = offset, slope


@dataclass(frozen=True)
class ChainEnd:
    """Where a chain of guesses ends: after the first that is doubtful, or before all of them
    together are.

    share: a token with a smaller one is the last. least: float64, by how many guesses the chain has,
    from one on: where the chance that all of them are right is smaller, they are the last; and there
    are no more than these. chances: of guesses. before: so many guesses come before those of the
    chain, all of which are right with the chance `path_chance`.
    """

    share: float
    least: array[float]
    chances: ChanceTable
    before: int = 0
    path_chance: float = 1.0

    def goes_on(self, shares: Sequence[float]) -> bool:
        """Whether more guesses are wanted after those with these shares, of which there is one."""
        if len(shares) >= len(self.least) or min(shares) < self.share:
            return False
        path_chance = self.path_chance
        for depth, share in enumerate(shares, start=self.before + 1):
            path_chance *= self.chances.chance(share, depth)
        return path_chance >= self.least[len(shares) - 1]


def certain_end(share: float, most: int) -> ChainEnd:
    """After the first token with a smaller share, or after `most`."""
    return ChainEnd(share, array("d", bytes(8 * most)), ChanceTable((), (), 0.0, 1.0, most))


@dataclass(frozen=True)
class ChainRequest:
    """Passes one after the other, of which each reads the likeliest token of the one before.

    passes: at most, >= 1. most: ids that are wanted of each. known: below this. end: None for after
    the last pass.
    """

    passes: int
    most: int
    known: int
    end: ChainEnd | None = None


@dataclass(frozen=True)
class ChainFound:
    """What passes have found: of each the likeliest ids with their shares in the softmax of all that
    are known, fewer where there are fewer; where less can be said the last ones have share 0.

    seconds: that each took.
    """

    ranked: list[Ranked]
    seconds: list[float]
