"""What guesses at several distances are trained to minimise."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F

__all__ = ["NO_LABEL", "Loss", "guess_loss"]

Loss = Literal["distillation", "labels"]
"""Learn the target's whole distribution, or the token it said."""

NO_LABEL = -100
"""Stands for a token that cannot be guessed, because it has no column of logits."""


def guess_loss(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor | None,
    kind: Loss,
    decay: float,
) -> torch.Tensor:
    """The mean over distances of decay^i * the mean loss at distance i, i from 0.

    logits: [batch, n, distances, columns] of the guesses.
    tokens: [batch, n, distances] int64, what the target said, as columns; for labels. `NO_LABEL`
    is left out.
    scores: [batch, n, distances, columns], the target's logits; for distillation.

    Distillation is KL(target || guess), as in PPD's official code; its formula 4.1 has the two the
    other way round, and i from 1.
    """
    distances = logits.shape[2]
    if kind == "distillation":
        assert scores is not None  # noqa: S101 - for the type checker
        taught = F.log_softmax(scores.float(), dim=-1)
        guessed = F.log_softmax(logits, dim=-1)
        each = F.kl_div(guessed, taught, log_target=True, reduction="none").sum(dim=-1)
        means = each.mean(dim=(0, 1))
    else:
        each = F.cross_entropy(
            logits.flatten(0, 2), tokens.flatten(), reduction="none", ignore_index=NO_LABEL
        ).view_as(tokens)
        counts = (tokens != NO_LABEL).sum(dim=(0, 1)).clamp(min=1)
        means = each.sum(dim=(0, 1)) / counts
    decays = decay ** torch.arange(distances, device=logits.device)
    return (means * decays).mean()
