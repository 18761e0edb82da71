"""How likely guesses are to be right, by their shares in the softmax that they come from."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.planning.calibration import Calibration, chance_table

__all__ = ["ShareChances"]

_MEMORY = 400.0
_RANKS = 5
"""Of so many guesses for a token is counted what came of them; others are as likely as their like."""


class ShareChances:
    """Of guesses up to `distances` tokens away, each as if those before it did not matter."""

    def __init__(self, distances: int) -> None:
        self._counts = Calibration(_MEMORY)
        self._table = chance_table(distances)

    def of(self, shares: Sequence[Sequence[float]]) -> list[list[float]]:
        """Shares at distances 1, 2, … -> chances."""
        chance = self._table.chance
        return [
            [chance(share, distance) for share in row] for distance, row in enumerate(shares, 1)
        ]

    def learn(self, distance: int, shares: Sequence[float], rank: int | None) -> None:
        """Which of the guesses with these shares was right is known; None: no one."""
        for place, share in enumerate(shares[:_RANKS]):
            self._counts.learn(share, distance, place == rank, self._table)
