"""A trained method as the training loop sees it, and the batches it learns from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from paceline.training.batches import Batch, Batches
from paceline.training.dataset import Text
from paceline.training.method import TrainedMethod
from paceline.training.scorer import Scorer, Teacher
from paceline.training.settings import TrainerSettings
from paceline.training.tally import Tally

__all__ = ["MethodLessons", "MethodTrainee"]


class MethodTrainee:
    """`method`, with what it minimises; see `Trainee`.

    texts: of the validation split, which are judged by.
    """

    def __init__(
        self, method: TrainedMethod[Any], teacher: Teacher, settings: TrainerSettings, texts: int
    ) -> None:
        self.method = method
        self._teacher = teacher
        self._settings = settings
        self._texts = texts
        self._tally = Tally(texts, settings.heads)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All that learn."""
        parts = self.method.module.named_parameters()
        return ((name, part) for name, part in parts if part.requires_grad)

    def relative_rate(self, name: str) -> float:
        """See `TrainedMethod.relative_rate`."""
        return self.method.relative_rate(name)

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `TrainedMethod.tensors`."""
        return self.method.tensors()

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See `TrainedMethod.load`."""
        self.method.load(tensors)

    def loss(self, lesson: Batch) -> torch.Tensor:
        """What the scorer adds up; without gradients it is counted by text, too."""
        tally = None if torch.is_grad_enabled() else self._tally
        return self._scored(lesson, tally).loss

    def notes(self) -> dict[str, Any]:
        """How often the first guesses of each head were right on what was judged."""
        found = self._tally.top(1)
        self._tally = Tally(self._texts, self._settings.heads)
        return {"top1": found}

    @torch.no_grad()
    def measure(self, batches: Iterator[Batch], texts: int) -> Tally:
        """All counts on the batches of a split."""
        tally = Tally(texts, self._settings.heads)
        for batch in batches:
            self._scored(batch, tally)
        return tally

    def _scored(self, batch: Batch, tally: Tally | None) -> Scorer:
        scorer = Scorer(batch, self._teacher, self._settings, tally)
        self.method.forward(batch, scorer)
        return scorer


class MethodLessons:
    """Batches as lessons; see `Lessons`."""

    def __init__(self, batches: Batches, judged: list[Text]) -> None:
        self._batches = batches
        self._judged = judged

    def learned(self, first: int) -> Iterator[Batch]:
        """Batches from step `first` on."""
        return self._batches.train(first)

    def judged(self) -> Iterator[tuple[Batch, int]]:
        """All places of the validation split."""
        for batch in self._batches.whole(self._judged):
            yield batch, self.places(batch)

    def places(self, lesson: Batch) -> int:
        """Those that are learned from."""
        return int(lesson.place.sum())
