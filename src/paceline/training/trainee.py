"""A method and its loss, as the training loop sees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.kernels.blocks import rounded_numbers
from paceline.training.batches import Batch
from paceline.training.method import TrainedMethod
from paceline.training.precision import forward_in
from paceline.training.scorer import Scorer, Teacher
from paceline.training.settings import TrainerSettings
from paceline.training.tally import Tally

__all__ = ["Trainee"]


class Trainee:
    """A method and its loss.

    texts: number in the validation split. precision: of products, see `forward_in`.
    """

    def __init__(
        self,
        method: TrainedMethod[Any],
        teacher: Teacher,
        settings: TrainerSettings,
        texts: int,
        precision: str = "float32",
    ) -> None:
        self.method = method
        self._teacher = teacher
        self.settings = settings
        self._texts = texts
        self._precision = precision
        self._tally = Tally(texts, settings.heads)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those that learn, in float32."""
        parts = self.method.module.named_parameters()
        return ((name, part) for name, part in parts if part.requires_grad)

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Within it, matrices have the bits of those that guess, and gradients are those of the
        rounded ones (straight-through, arXiv 1308.3432)."""
        named = self.named_parameters()
        parts = [part for name, part in named if self.method.may_round(name, part)]
        kept = [part.data for part in parts]
        try:
            if bits := self.method.bits:
                for part in parts:
                    part.data = rounded_numbers(part.data, bits)
            yield
        finally:
            for part, own in zip(parts, kept):
                part.data = own

    def loss(self, batch: Batch) -> torch.Tensor:
        """The loss, a scalar; without gradients, guesses are counted by text, too. See `rounded`."""
        tally = None if torch.is_grad_enabled() else self._tally
        return self._scored(batch, tally).loss

    def notes(self) -> dict[str, Any]:
        """Share of right first guesses by head, on what was judged since the last call."""
        found, self._tally = self._tally.top(1), Tally(self._texts, self.settings.heads)
        return {"top1": found}

    @torch.no_grad()
    def measure(self, batches: Iterator[Batch], texts: int) -> Tally:
        """Count all guesses on the batches of a split."""
        tally = Tally(texts, self.settings.heads)
        with self.rounded():
            for batch in batches:
                self._scored(batch, tally)
        return tally

    def _scored(self, batch: Batch, tally: Tally | None) -> Scorer:
        scorer = Scorer(batch, self._teacher, self.settings, tally)
        with forward_in(self._precision, batch.tokens.device):
            self.method.forward(batch, scorer)
        return scorer
