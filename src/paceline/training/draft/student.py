"""A draft model as something that learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.models.draft_head import ReducedHead
from paceline.models.draft_model import name_of_head, own_tensors
from paceline.training.draft.cutting import mixed_precision
from paceline.training.draft.lessons import Lesson
from paceline.training.draft.recipe import Loss

__all__ = ["Student", "loss_of"]


class Student:
    """`draft`, a part of `base`, with what it minimises; see `Trainee`.

    Its own layers and the last normalisation learn; embeddings and output head are the base's, and
    stay as they are. A reduced output head is taken apart: what a draft cannot say teaches nothing.

    vocabulary: ids [count] of the tokens that can be said; None where that is all.
    """

    def __init__(self, draft: PreTrainedModel, base: PreTrainedModel, loss: Loss) -> None:
        self.draft = draft
        self._base = base
        self._loss = loss
        own = own_tensors(draft, base).keys()
        self._own = {name: part for name, part in draft.named_parameters() if name in own}
        base.requires_grad_(False)
        draft.requires_grad_(False)
        for part in self._own.values():
            part.requires_grad_(True)
        head = draft.get_submodule(name_of_head(base))
        self.vocabulary: torch.Tensor | None = None
        if isinstance(head, ReducedHead):
            self.vocabulary = head.tokens
            draft.set_submodule(name_of_head(base), head.rows)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All that learns."""
        return iter(self._own.items())

    def relative_rate(self, name: str) -> float:
        """All alike."""
        return 1.0

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters by name, detached copies."""
        return {name: part.detach().clone() for name, part in self._own.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `tensors` gave."""
        for name, part in self._own.items():
            part.copy_(tensors[name])

    def logits(self, lesson: Lesson) -> torch.Tensor:
        """[batch, places, tokens that can be said]."""
        with mixed_precision(self._base):
            outputs = self.draft(lesson.ids, use_cache=False, logits_to_keep=lesson.keep)
        logits: torch.Tensor = outputs.logits.float()
        return logits

    def notes(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def loss(self, lesson: Lesson) -> torch.Tensor:
        """See `loss_of`."""
        return loss_of(self.logits(lesson), lesson, self._loss)


def loss_of(logits: torch.Tensor, lesson: Lesson, kind: Loss) -> torch.Tensor:
    """The mean over the places of a lesson, weighted.

    logits: [batch, places, tokens that can be said].

    Distillation: the target's chances of what the draft can say, times the divergence of the draft
    from the target's distribution over these tokens, in which all but the likeliest ones count as
    one token. So a place where the target says what the draft cannot teaches little, and nothing
    pulls the draft away from tokens that are merely not among the likeliest.
    Labels: those chances, times the cross-entropy of the likeliest token.
    """
    log_total = logits.logsumexp(dim=-1)
    guessed = logits.gather(-1, lesson.tokens) - log_total[..., None]
    if kind == "labels":
        each = -guessed[..., 0]
    else:
        taught = lesson.log_chances - lesson.log_kept[..., None]
        each = (taught.exp() * (taught - guessed)).sum(dim=-1)
        if lesson.tokens.shape[-1] < logits.shape[-1]:
            rest = (1 - taught.exp().sum(dim=-1)).clamp(min=0)
            others = logits.scatter(-1, lesson.tokens, -torch.inf).logsumexp(dim=-1)
            each = each + torch.xlogy(rest, rest) - rest * (others - log_total)
    total: torch.Tensor = (each * lesson.log_kept.exp() * lesson.weights).sum()
    return total / lesson.weights.sum()
