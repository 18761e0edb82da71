"""How prompt tokens learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from paceline.errors import UsageError
from paceline.training.losses import Loss
from paceline.training.recipe import Recipe

__all__ = ["PromptRecipe"]


@dataclass(frozen=True)
class PromptRecipe(Recipe):
    """How prompt tokens learn (PPD, section 6.1.2, and what its official code does); what all
    recipes share is in `Recipe`.

    points: places per text where prompt tokens are put in, at most.
    loss, decay: see `guess_loss`; distillation and 0.8 as in the thesis (section 4.3.2).
    head_rate: learning rate of a head, relative to that of the rest.

    Raises UsageError for a value out of range.
    """

    learning_rate: float = 1e-2
    points: int = 32
    loss: Loss = "distillation"
    decay: float = 0.8
    head_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points < 1:
            raise UsageError(f"points must be at least 1, got {self.points}")
        if not (self.head_rate > 0 and 0 < self.decay <= 1):
            raise UsageError("rates must be positive, and the decay between 0 and 1")
        if self.loss not in get_args(Loss):
            raise UsageError(f"loss must be one of {', '.join(get_args(Loss))}, got {self.loss!r}")
