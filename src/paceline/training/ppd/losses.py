"""What prompt tokens are trained to minimise (PPD, section 4.3.2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F

from paceline.training.ppd.teacher import Lesson

__all__ = ["Loss", "loss_of"]

Loss = Literal["distillation", "labels"]
"""Learn the target's whole distribution, or the token it said."""


def loss_of(logits: torch.Tensor, lesson: Lesson, kind: Loss, decay: float) -> torch.Tensor:
    """The mean over all points of (1 / m) * sum of decay^i * loss at distance i, i from 0.

    logits: [batch, n, m, vocabulary] of the prompt tokens.

    Distillation is KL(target || prompt token), as in the official code; the paper's formula 4.1
    has the two the other way round, and i from 1.
    """
    distances = logits.shape[2]
    if kind == "distillation":
        taught = F.log_softmax(lesson.scores.float(), dim=-1)
        guessed = F.log_softmax(logits, dim=-1)
        each = F.kl_div(guessed, taught, log_target=True, reduction="none").sum(dim=-1)
    else:
        each = F.cross_entropy(logits.flatten(0, 2), lesson.tokens.flatten(), reduction="none")
        each = each.view_as(lesson.tokens)
    decays = decay ** torch.arange(distances, device=logits.device)
    return (each.mean(dim=(0, 1)) * decays).mean()
