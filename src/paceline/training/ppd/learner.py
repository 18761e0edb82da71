"""One set of prompt tokens while it learns: optimiser, schedule, the best so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import cos, inf, pi
from typing import Any, get_args

import torch

from paceline.errors import UsageError
from paceline.training.ppd.losses import Loss, loss_of
from paceline.training.ppd.prompt_model import PromptModel
from paceline.training.ppd.teacher import Lesson

__all__ = ["Learner", "Recipe"]

# What counts as better: less than this share of the loss is noise.
_BETTER = 1e-3


@dataclass(frozen=True)
class Recipe:
    """How prompt tokens learn (PPD, section 6.1.2, and what its official code does).

    steps: of the optimiser, one batch each; the learning rate falls to 0 as a cosine.
    batch: texts per step. points: places per text where prompt tokens are put in, at most.
    longest: tokens of a text that are read, prompt included.
    loss, decay: see `loss_of`.
    learning_rate: of AdamW, without weight decay. head_rate: that of a head, relative to it.
    held_back: share of the texts that nothing is learned from.
    evaluate_every: steps between two looks at the held-back loss; patience: how many of these
    without progress end the training early. checkpoint_every: steps.

    Raises UsageError for a value out of range.
    """

    steps: int = 400
    batch: int = 4
    points: int = 32
    longest: int = 512
    loss: Loss = "distillation"
    decay: float = 0.8
    learning_rate: float = 1e-2
    head_rate: float = 0.1
    held_back: float = 0.05
    evaluate_every: int = 50
    patience: int = 4
    checkpoint_every: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        whole = ("steps", "batch", "points", "evaluate_every", "patience", "checkpoint_every")
        for name in whole:
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.longest < 16:
            raise UsageError(f"a text must have at least 16 tokens, got {self.longest}")
        if not (self.learning_rate > 0 and self.head_rate > 0 and 0 < self.decay <= 1):
            raise UsageError("rates must be positive, and the decay between 0 and 1")
        if not 0 < self.held_back < 1:
            raise UsageError(f"the share held back must be between 0 and 1, got {self.held_back}")
        if self.loss not in get_args(Loss):
            raise UsageError(f"loss must be one of {', '.join(get_args(Loss))}, got {self.loss!r}")

    def as_json(self) -> dict[str, Any]:
        """For records."""
        return asdict(self)

    def rate(self, step: int) -> float:
        """Learning rate of a step, 0 <= step < steps."""
        return self.learning_rate * 0.5 * (1 + cos(pi * step / self.steps))


class Learner:
    """Trains `model` by `recipe`, one lesson a step.

    step: how many were taken. best_loss: the lowest held-back loss; `best` are its parts.
    stale: looks at the held-back loss since then.
    """

    def __init__(self, model: PromptModel, recipe: Recipe) -> None:
        self.model = model
        self.recipe = recipe
        self.step = 0
        self.best_loss = inf
        self.best = model.tensors()
        self.stale = 0
        head = [part for name, part in model.named_parameters() if name.startswith("head.")]
        rest = [part for name, part in model.named_parameters() if not name.startswith("head.")]
        groups = [{"params": rest, "scale": 1.0}]
        if head:
            groups.append({"params": head, "scale": recipe.head_rate})
        self._optimizer = torch.optim.AdamW(groups, weight_decay=0.0)

    @property
    def finished(self) -> bool:
        """Whether all steps were taken, or the held-back loss stopped falling."""
        return self.step >= self.recipe.steps or self.stale >= self.recipe.patience

    def learn(self, lesson: Lesson) -> float:
        """Take a step; the loss before it."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step) * group["scale"]
        loss = self.loss(lesson)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.step += 1
        return float(loss.detach())

    def loss(self, lesson: Lesson) -> torch.Tensor:
        """What is minimised, on one lesson."""
        return loss_of(self.model(lesson), lesson, self.recipe.loss, self.recipe.decay)

    def judge(self, held_back_loss: float) -> None:
        """Keep the parts as the best ones where they are."""
        if held_back_loss < self.best_loss * (1 - _BETTER):
            self.best_loss, self.best, self.stale = held_back_loss, self.model.tensors(), 0
        else:
            self.stale += 1

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and numbers from which `restore` goes on exactly."""
        tensors = {f"now/{name}": part for name, part in self.model.tensors().items()}
        tensors |= {f"best/{name}": part for name, part in self.best.items()}
        for name, part in self.model.named_parameters():
            for key, value in self._optimizer.state.get(part, {}).items():
                tensors[f"optimizer/{key}/{name}"] = torch.as_tensor(value)
        return tensors, {"step": self.step, "best_loss": self.best_loss, "stale": self.stale}

    def restore(self, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; raises KeyError where something is missing."""
        names = [name for name, _ in self.model.named_parameters()]
        self.model.load({name: tensors[f"now/{name}"] for name in names})
        self.best = {
            name: tensors[f"best/{name}"].to(part.device, copy=True)
            for name, part in self.model.named_parameters()
        }
        for name, part in self.model.named_parameters():
            if numbers["step"]:
                moments = {
                    key: tensors[f"optimizer/{key}/{name}"].to(part.device, copy=True)
                    for key in ("exp_avg", "exp_avg_sq")
                }
                # The count of steps stays on the host, as the optimiser keeps it.
                step = tensors[f"optimizer/step/{name}"].clone()
                self._optimizer.state[part] = {"step": step, **moments}
        self.step = int(numbers["step"])
        self.best_loss, self.stale = float(numbers["best_loss"]), int(numbers["stale"])
