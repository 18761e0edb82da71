"""How often prompt tokens guess right, by distance and rank (PPD, tables 6.4 and 6.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.planning.acceptance import AcceptanceTable
from paceline.training.ppd.examples import Assignment, Example, choose_points
from paceline.training.ppd.prompt_model import PromptModel
from paceline.training.ppd.teacher import Lesson, Teacher

__all__ = ["RANKS", "Accuracy", "fixed_assignments", "measure_accuracy"]

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

    def as_json(self) -> dict[str, Any]:
        """{"points", "top1": [by distance], "top5": …, "top10": …}."""
        distances = range(1, len(self.hits) + 1)
        shares = {
            f"top{rank}": [round(self.top(rank, distance), 4) for distance in distances]
            for rank in (1, 5, 10)
        }
        return {"points": self.points, **shares}


def fixed_assignments(
    texts: Sequence[Example], batch: int, most: int, distances: int
) -> list[Assignment]:
    """The same ones every time, on texts in order of their length."""
    ordered = sorted(texts, key=lambda one: (len(one.tokens), one.id))
    groups = [ordered[first : first + batch] for first in range(0, len(ordered), batch)]
    return [
        Assignment(
            [one.tokens for one in group], choose_points(group, distances, most, "held back")
        )
        for group in groups
    ]


@torch.no_grad()
def measure_accuracy(
    models: Sequence[PromptModel],
    teacher: Teacher,
    assignments: Sequence[Assignment],
    distances: int,
    on_assignment: Callable[[], None] = lambda: None,
) -> list[Accuracy]:
    """The accuracy of each of the models, which share what the teacher reads."""
    hits = [torch.zeros(distances, RANKS, dtype=torch.int64) for _ in models]
    points = 0
    for assignment in assignments:
        lesson = teacher.read(assignment, distances)
        points += lesson.points.numel()
        for model, own in zip(models, hits, strict=True):
            own += _hits(model, lesson)
        on_assignment()
    return [Accuracy(tuple(map(tuple, own.tolist())), points) for own in hits]


def _hits(model: PromptModel, lesson: Lesson) -> torch.Tensor:
    """[distances, RANKS] int64: at how many points of a lesson each rank was right."""
    best = model(lesson).topk(RANKS, dim=-1).indices
    right: torch.Tensor = best == lesson.tokens[..., None]
    return right.sum(dim=(0, 1)).cpu()
