"""How likely guesses are to be right, by their share of the softmax that they come from."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.planning.calibration import Calibration, chance_table

__all__ = ["ShareChances"]

_MEMORY = 400.0
_RANKS = 5
"""Guesses counted per token; later ones are assumed to be as likely as similar ones."""


class ShareChances:
    """Chances of guesses up to `distances` tokens away, each independent of those before it."""

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
        """Learn which of the guesses with these shares was right; None if none was."""
        for place, share in enumerate(shares[:_RANKS]):
            self._counts.learn(share, distance, place == rank, self._table)
