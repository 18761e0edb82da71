"""How often a draft model says what its target says, on texts that nothing was learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.training.draft.lessons import Lesson, lesson_of
from paceline.training.draft.student import Student
from paceline.training.draft.teacher import Teacher
from paceline.training.examples import Example, fixed_batches

__all__ = ["chain_length", "measure_agreement"]

_CHAINS = (1, 2, 4, 8, 16)
_RANKS = 5


@torch.no_grad()
def measure_agreement(
    student: Student, teacher: Teacher, texts: Sequence[Example], batch: int
) -> dict[str, Any]:
    """{"places", "said", "top1", "top5", "acceptance_length"} over all places of answers.

    said: share of places where the target's likeliest token is one that the draft can say.
    top1, top5: share of places where that token is the draft's likeliest, or among its five.
    acceptance_length: by length of the drafted chain, see `chain_length`; chains that reach beyond
    the end of a text are left out.
    """
    said, ranks = [], []
    for group in fixed_batches(texts, batch):
        lesson = lesson_of(group, teacher)
        of_texts = _ranks(student, lesson)
        for row, rank in zip(lesson.weights, of_texts, strict=True):
            ranks.append(rank[row > 0].tolist())
        greedy = lesson.greedy[lesson.weights > 0]
        said += _can_say(student, greedy).tolist()
    flat = [rank for text in ranks for rank in text]
    hits = [[rank == 0 for rank in text] for text in ranks]
    return {
        "places": len(flat),
        "said": round(sum(said) / len(said), 4),
        "top1": round(sum(rank == 0 for rank in flat) / len(flat), 4),
        f"top{_RANKS}": round(sum(rank < _RANKS for rank in flat) / len(flat), 4),
        "acceptance_length": {
            str(length): round(chain_length(hits, length), 3)
            for length in _CHAINS
            if any(len(text) >= length for text in hits)
        },
    }


def chain_length(hits: Sequence[Sequence[bool]], length: int) -> float:
    """Tokens per round with greedy chains of this length: right guesses before the first wrong one,
    and the token that the target adds.

    hits: by text and place, whether the draft says there what the target says. Up to its first
    wrong guess a chain reads the target's own text, so this is what decoding gives where the texts
    are the target's greedy ones.
    """
    gained, chains = 0, 0
    for text in hits:
        for first in range(len(text) - length + 1):
            chain = text[first : first + length]
            gained += 1 + (chain.index(False) if False in chain else length)
            chains += 1
    return gained / chains


def _ranks(student: Student, lesson: Lesson) -> torch.Tensor:
    """[batch, places]: the rank, from 0, of the target's token among the draft's guesses; _RANKS
    where it is not among the first ones."""
    guesses = student.logits(lesson).topk(_RANKS, dim=-1).indices
    if student.vocabulary is not None:
        guesses = student.vocabulary[guesses]
    right = guesses == lesson.greedy[..., None]
    missed = torch.ones_like(right[..., :1])
    return torch.cat([right, missed], dim=-1).long().argmax(dim=-1)


def _can_say(student: Student, tokens: torch.Tensor) -> torch.Tensor:
    if student.vocabulary is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    return torch.isin(tokens, student.vocabulary)
