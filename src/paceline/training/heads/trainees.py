"""Heads as something that learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.drafters.chimera_model import ChimeraModel, Drafted
from paceline.drafters.medusa_heads import HeadModule, MedusaHeads
from paceline.training.draft.cutting import mixed_precision
from paceline.training.heads.lessons import HeadLesson
from paceline.training.heads.recipe import ChimeraRecipe, HeadRecipe
from paceline.training.losses import guess_loss

__all__ = ["ChimeraTrainee", "HeadTrainee", "MedusaTrainee"]

ModuleT = TypeVar("ModuleT", bound=HeadModule)
RecipeT = TypeVar("RecipeT", bound=HeadRecipe)


class HeadTrainee(ABC, Generic[ModuleT, RecipeT]):
    """A module of heads, with what it minimises; see `Trainee`.

    model: frozen; products are made in its precision.
    """

    def __init__(self, module: ModuleT, recipe: RecipeT, model: PreTrainedModel) -> None:
        self.module = module
        self.recipe = recipe
        self.model = model

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All of the module's that learn."""
        return self.module.named_parameters()

    def relative_rate(self, name: str) -> float:
        """All alike."""
        return 1.0

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `HeadModule.tensors`."""
        return self.module.tensors()

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See `HeadModule.load`."""
        self.module.load(tensors)

    @abstractmethod
    def loss(self, lesson: HeadLesson) -> torch.Tensor:
        """What is minimised, on one lesson."""

    @abstractmethod
    def guesses(self, lesson: HeadLesson) -> dict[str, torch.Tensor]:
        """Logits [batch, n, heads, columns], by the ways to make them: "guesses" is how they are
        used when texts are written."""

    def guess_loss(self, logits: torch.Tensor, lesson: HeadLesson) -> torch.Tensor:
        """See `guess_loss`. logits: [batch, n, heads, columns]."""
        return guess_loss(logits, lesson.labels, lesson.scores, self.recipe.loss, self.recipe.decay)


class MedusaTrainee(HeadTrainee[MedusaHeads, HeadRecipe]):
    """Medusa heads."""

    def guesses(self, lesson: HeadLesson) -> dict[str, torch.Tensor]:
        """One way: heads know nothing of one another."""
        batch = torch.arange(len(lesson.points), device=lesson.points.device)[:, None]
        states = lesson.states[batch, lesson.points]
        with mixed_precision(self.model):
            found: torch.Tensor = self.module(states.flatten(0, 1))
        return {"guesses": found.view(*states.shape[:2], *found.shape[1:])}

    def loss(self, lesson: HeadLesson) -> torch.Tensor:
        """See `guess_loss`."""
        return self.guess_loss(self.guesses(lesson)["guesses"], lesson)


class ChimeraTrainee(HeadTrainee[ChimeraModel, ChimeraRecipe]):
    """The draft model of Chimera."""

    def guesses(self, lesson: HeadLesson) -> dict[str, torch.Tensor]:
        """Behind the tokens of the text, since a guess counts only where those before it are right;
        and behind the heads' own likeliest guesses, "own_guesses", which is what the paper's table 5
        has."""
        found = {"guesses": self._drafted(lesson, False).logits}
        if self.module.config.bottom == "ngram":
            found["own_guesses"] = self._drafted(lesson, True).logits
        return found

    def _drafted(self, lesson: HeadLesson, own_guesses: bool) -> Drafted:
        """See `ChimeraModel.forward`."""
        with mixed_precision(self.model):
            found: Drafted = self.module(lesson.tokens, lesson.states, lesson.points, own_guesses)
        return found

    def loss(self, lesson: HeadLesson) -> torch.Tensor:
        """The loss of guesses, and the weighted distance of draft states from the target's (the
        paper's formulas 5 to 7): of all of them, where the official code has those of the root."""
        found = self._drafted(lesson, self.recipe.own_guesses)
        wanted = lesson.states_ahead(self.module.config.heads)
        distance = (found.states.float() - wanted).square().mean() / wanted.square().mean()
        return self.guess_loss(found.logits, lesson) + self.recipe.state_weight * distance
