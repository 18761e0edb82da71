"""How parts learn: what the recipes of all trainings share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import cos, pi
from typing import Any

from paceline.errors import UsageError

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How something is trained on texts.

    steps: of the optimiser, one batch each. batch: texts per step.
    longest: tokens of a text that are read, prompt included.
    learning_rate: of AdamW, without weight decay; it falls to 0 as a cosine.
    warm_up: share of the steps in which it first rises from near 0.
    clip: gradients of all parameters together are shortened to this length; 0 leaves them.
    held_back: share of the texts that nothing is learned from.
    evaluate_every: steps between two looks at the held-back loss; patience: how many of these
    without progress end the training early. checkpoint_every: steps.

    Raises UsageError for a value out of range.
    """

    steps: int = 400
    batch: int = 4
    longest: int = 512
    learning_rate: float = 1e-3
    warm_up: float = 0.0
    clip: float = 0.0
    held_back: float = 0.05
    evaluate_every: int = 50
    patience: int = 4
    checkpoint_every: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "evaluate_every", "patience", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.longest < 16:
            raise UsageError(f"a text must have at least 16 tokens, got {self.longest}")
        if not self.learning_rate > 0:
            raise UsageError(f"the learning rate must be positive, got {self.learning_rate}")
        if not 0 <= self.warm_up < 1:
            raise UsageError(f"warm-up must be a share of the steps, got {self.warm_up}")
        if not self.clip >= 0:
            raise UsageError(f"the length of gradients must not be negative, got {self.clip}")
        if not 0 < self.held_back < 1:
            raise UsageError(f"the share held back must be between 0 and 1, got {self.held_back}")

    @property
    def validate_every(self) -> int:
        """See `Pace`."""
        return self.evaluate_every

    @property
    def weight_decay(self) -> float:
        """None."""
        return 0.0

    def as_json(self) -> dict[str, Any]:
        """For records."""
        return asdict(self)

    def rate(self, step: int) -> float:
        """Learning rate of a step, 0 <= step < steps."""
        rising = round(self.warm_up * self.steps)
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        falling = (step - rising) / (self.steps - rising)
        return self.learning_rate * 0.5 * (1 + cos(pi * falling))
