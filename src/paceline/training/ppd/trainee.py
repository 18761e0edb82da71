"""Prompt tokens as something that learns, and the lessons they learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import nn

from paceline.training.course import Course
from paceline.training.examples import assignments, fixed_assignments
from paceline.training.losses import guess_loss
from paceline.training.ppd.prompt_model import PromptModel
from paceline.training.ppd.recipe import PromptRecipe
from paceline.training.ppd.teacher import Lesson, Teacher

__all__ = ["PromptLessons", "PromptTrainee"]

# Of the held-back texts, for the loss on the way.
_JUDGED_TEXTS, _JUDGED_POINTS = 32, 16


class PromptTrainee:
    """`prompts`, with what they minimise; see `Trainee`."""

    def __init__(self, prompts: PromptModel, recipe: PromptRecipe) -> None:
        self.prompts = prompts
        self.recipe = recipe

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of the prompt tokens."""
        return self.prompts.named_parameters()

    def relative_rate(self, name: str) -> float:
        """Heads are slower."""
        return self.recipe.head_rate if name.startswith("head.") else 1.0

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `PromptModel.tensors`."""
        return self.prompts.tensors()

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See `PromptModel.load`."""
        self.prompts.load(tensors)

    def notes(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def loss(self, lesson: Lesson) -> torch.Tensor:
        """See `guess_loss`."""
        recipe = self.recipe
        logits = self.prompts(lesson)
        return guess_loss(logits, lesson.tokens, lesson.scores, recipe.loss, recipe.decay)


class PromptLessons:
    """What the teacher reads of a course; see `Lessons`."""

    def __init__(
        self, teacher: Teacher, course: Course, distances: int, recipe: PromptRecipe
    ) -> None:
        self.teacher = teacher
        self.course = course
        self.distances = distances
        self.recipe = recipe

    def learned(self, first: int) -> Iterator[Lesson]:
        """Lessons from step `first` on."""
        recipe, texts = self.recipe, self.course.learned
        steps = assignments(texts, recipe.batch, recipe.points, self.distances, recipe.seed)
        for assignment in islice(steps, first, None):
            yield self.teacher.read(assignment, self.distances)

    def judged(self) -> Iterator[tuple[Lesson, int]]:
        """Lessons on held-back texts."""
        texts = self.course.judged[:_JUDGED_TEXTS]
        for assignment in fixed_assignments(
            texts, self.recipe.batch, _JUDGED_POINTS, self.distances
        ):
            lesson = self.teacher.read(assignment, self.distances)
            yield lesson, lesson.points.numel()

    def places(self, lesson: Lesson) -> int:
        """Where prompt tokens were put in."""
        return lesson.points.numel()
