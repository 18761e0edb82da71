"""How heads learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from paceline.errors import UsageError
from paceline.training.losses import Loss
from paceline.training.recipe import Recipe

__all__ = ["ChimeraRecipe", "HeadRecipe"]


@dataclass(frozen=True)
class HeadRecipe(Recipe):
    """How Medusa heads learn; what all recipes share is in `Recipe`.

    points: places per text that are learned from, at most.
    loss, decay: see `guess_loss`. Medusa's paper has labels and 0.8 (its code 1), Chimera's labels
    and 1.
    prompts: whether places in prompts are learned from, too. What the text says there is not the
    target's own, so labels are then its likeliest tokens.

    Raises UsageError for a value out of range.
    """

    points: int = 32
    loss: Loss = "labels"
    decay: float = 0.8
    prompts: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points < 1:
            raise UsageError(f"points must be at least 1, got {self.points}")
        if not 0 < self.decay <= 1:
            raise UsageError(f"the decay must be between 0 and 1, got {self.decay}")
        if self.loss not in get_args(Loss):
            raise UsageError(f"loss must be one of {', '.join(get_args(Loss))}, got {self.loss!r}")


@dataclass(frozen=True)
class ChimeraRecipe(HeadRecipe):
    """How the draft model of Chimera learns.

    state_weight: of the distance between draft states and the target's, beside the loss of guesses.
    The paper's weight is lost, its code has 1 at first and drops the term later. Here the mean
    squared distance is relative to the mean square of the target's states, so that 1 means the same
    for every model.
    own_guesses: learn behind the heads' own likeliest guesses, as the official code does, instead
    of behind the tokens of the text. A guess counts only where those before it are right, so what
    is learned behind wrong ones is never used: the text is the default.

    Raises UsageError for a value out of range.
    """

    learning_rate: float = 5e-4
    decay: float = 1.0
    state_weight: float = 1.0
    own_guesses: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.state_weight >= 0:
            raise UsageError(f"the weight of states must not be negative, got {self.state_weight}")
