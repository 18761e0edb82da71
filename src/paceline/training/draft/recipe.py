"""What draft model is trained, and how it learns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from paceline.errors import UsageError
from paceline.training.recipe import Recipe

__all__ = ["DraftConfig", "DraftRecipe", "Loss"]

Loss = Literal["distillation", "labels"]
"""Learn the target's distribution, or the token it finds likeliest."""


@dataclass(frozen=True)
class DraftConfig:
    """What is trained.

    layers: of the target that are kept, from 0, ascending; none are the first and the last.
    vocabulary: so many tokens can be said, the most frequent ones of the answers; 0 is all.
    standalone: whether the folder holds the embeddings, too, so that any software can open it.

    Raises UsageError for a vocabulary below 0, or a reduced one in a folder that stands alone.
    """

    layers: tuple[int, ...] = ()
    vocabulary: int = 0
    standalone: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary < 0:
            raise UsageError(f"a vocabulary has at least one token, got {self.vocabulary}")
        if self.standalone and self.vocabulary:
            raise UsageError(
                "a draft model that stands alone is an ordinary one, with its whole vocabulary: "
                "leave out --vocabulary or --standalone"
            )

    def as_json(self) -> dict[str, Any]:
        """For records."""
        return {**asdict(self), "layers": list(self.layers)}


@dataclass(frozen=True)
class DraftRecipe(Recipe):
    """How a draft model learns; what all recipes share is in `Recipe`.

    points: places per text that are learned from in a step, at most.
    top: so many of the target's likeliest tokens are learned one by one, the others as one.
    prompt_weight: what a place in a prompt counts, where one in an answer counts 1.
    loss: see `Loss`.

    Raises UsageError for a value out of range.
    """

    steps: int = 600
    longest: int = 384
    warm_up: float = 0.05
    clip: float = 1.0
    held_back: float = 0.1
    checkpoint_every: int = 50
    points: int = 256
    top: int = 64
    prompt_weight: float = 0.5
    loss: Loss = "distillation"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("points", "top"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.prompt_weight <= 1:
            raise UsageError(f"the weight of prompts is 0 to 1, got {self.prompt_weight}")
        if self.loss not in get_args(Loss):
            raise UsageError(f"loss must be one of {', '.join(get_args(Loss))}, got {self.loss!r}")
