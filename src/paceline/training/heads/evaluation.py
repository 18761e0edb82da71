"""How often heads guess right, by head and rank (Chimera, table 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.planning.acceptance import AcceptanceTable
from paceline.training.accuracy import Accuracy, count_hits
from paceline.training.examples import Example
from paceline.training.heads.lessons import HeadLessons
from paceline.training.heads.trainees import HeadTrainee

__all__ = ["measure"]

_PLACES = 64  # at a time: each has logits of all tokens from every head
_RANKS = (1, 2, 3, 4, 5, 10)


@torch.no_grad()
def measure(
    trainee: HeadTrainee[Any, Any], lessons: HeadLessons, texts: Sequence[Example]
) -> tuple[AcceptanceTable, dict[str, Any]]:
    """The table of acceptance, and the shares of points at which one of so many likeliest guesses
    was right, by head: {"points", "top1": [...], …}; other ways to guess by their names, see
    `HeadTrainee.guesses`. Every place of the answers is a point that has so many tokens behind it
    as there are heads, and one more."""
    hits: dict[str, torch.Tensor] = {}
    points = 0
    for lesson in lessons.whole(texts):
        for part in lesson.parts(_PLACES):
            for name, logits in trainee.guesses(part).items():
                found = count_hits(logits, part.labels)
                hits[name] = found + hits[name] if name in hits else found
        points += lesson.points.numel()
    by_name = {
        name: Accuracy(tuple(map(tuple, own.tolist())), points) for name, own in hits.items()
    }
    used = by_name.pop("guesses")
    others = {name: own.as_json(_RANKS) for name, own in by_name.items()}
    return used.table, {**used.as_json(_RANKS), **others}
