"""How often guesses are right, by distance and rank, as trainings count it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.planning.acceptance import AcceptanceTable

__all__ = ["RANKS", "Accuracy", "count_hits"]

RANKS = 10


@dataclass(frozen=True)
class Accuracy:
    """Guesses that were right.

    hits: hits[d - 1][k - 1] of `points` times the k-th likeliest guess at distance d was the token
    that the target said.
    """

    hits: tuple[tuple[int, ...], ...]
    points: int

    @property
    def table(self) -> AcceptanceTable:
        """The same as shares."""
        return AcceptanceTable(tuple(tuple(n / self.points for n in row) for row in self.hits))

    def top(self, rank: int, distance: int) -> float:
        """Share of points at which one of the `rank` likeliest guesses was right."""
        return sum(self.hits[distance - 1][:rank]) / self.points

    def as_json(self, ranks: Sequence[int] = (1, 5, 10)) -> dict[str, Any]:
        """{"points", "top1": [by distance], "top5": …, "top10": …}."""
        distances = range(1, len(self.hits) + 1)
        shares = {
            f"top{rank}": [round(self.top(rank, distance), 4) for distance in distances]
            for rank in ranks
        }
        return {"points": self.points, **shares}


def count_hits(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[distances, RANKS] int64: at how many points each rank of the guesses was right.

    logits: [..., distances, vocabulary]. tokens: [..., distances] int64, what the target said.
    """
    ranks = min(RANKS, logits.shape[-1])
    right = logits.topk(ranks, dim=-1).indices == tokens[..., None]
    found = torch.zeros(tokens.shape[-1], RANKS, dtype=torch.int64)
    found[:, :ranks] = right.flatten(0, -3).sum(dim=0)
    return found
