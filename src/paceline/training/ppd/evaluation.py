"""How often prompt tokens guess right, by distance and rank (PPD, tables 6.4 and 6.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from paceline.training.accuracy import RANKS, Accuracy, count_hits
from paceline.training.examples import Assignment
from paceline.training.ppd.prompt_model import PromptModel
from paceline.training.ppd.teacher import Teacher

__all__ = ["measure_accuracy"]


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
            own += count_hits(model(lesson), lesson.tokens)
        on_assignment()
    return [Accuracy(tuple(map(tuple, own.tolist())), points) for own in hits]
