"""The loss of guesses against the target's distribution over the tokens that can be guessed.

If guesses end in the target's own frozen output head, the forward pass makes, compares and drops
logits a few hundred rows at a time, and keeps only the gradient of the head's input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from paceline.training.settings import SoftLoss

_ROWS = 512  # of logits at a time
_GPU_LOGITS = 1 << 26  # on a GPU as many rows as make this many logits, if those are more
_SLOPE = 3.0  # of the blend: the divergence has weight exp(-3 * acceptance)

Head = tuple[torch.Tensor, torch.Tensor]
"""Weights [columns, hidden] and biases [columns] of an output head, which does not learn."""

Taught = tuple[torch.Tensor, torch.Tensor]
"""The target's distributions [n, columns] float32, and their negative entropies [n]."""

Chances = Callable[[slice], Taught]
"""A slice of the rows -> the target's distributions there."""

Scored = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Loss, likeliest column and acceptance, each [n]; only the first has gradients."""


def rows_at_once(device: torch.device, columns: int) -> int:
    """Rows of logits to compute together: few stay in a processor's caches, many keep a GPU busy."""
    return max(_ROWS, _GPU_LOGITS // columns) if device.type == "cuda" else _ROWS


def compare(
    logits: torch.Tensor, taught: Taught, labels: torch.Tensor, kind: SoftLoss, counted: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compare guesses with the target, row by row.

    logits: [n, columns] float32. labels: [n] int64, the target's likeliest column. counted: whether
    to compute acceptance even if the loss does not need it; else it is 0.

    kl: sum p log(p / q). blend: w * kl + (1 - w) * (1 - sum min(p, q)) with w = exp(-3 * sum min(p,
    q)) of each row, as a constant: total variation alone teaches nothing to guesses that are far off.
    labels: -log q of the label.

    Returns the loss [n], its gradient by the logits [n, columns], the likeliest column int64 [n],
    and the acceptance [n], the chance that a token drawn from the guess would be accepted.
    """
    chances, negative_entropy = taught
    shares = logits.softmax(dim=-1)
    highest, best = logits.max(dim=-1)
    # The largest share is at least 1 / columns, so its logarithm is safe.
    total = highest - shares.gather(1, best[:, None])[:, 0].log()
    acceptance = torch.zeros_like(total)
    if counted or kind == "blend":
        acceptance = torch.minimum(shares, chances).sum(dim=-1)
    if kind == "labels":
        loss = total - logits.gather(1, labels[:, None])[:, 0]
        shares.scatter_add_(1, labels[:, None], shares.new_full((len(labels), 1), -1.0))
        return loss, shares, best, acceptance
    # A matrix product reads both only once.
    common = torch.bmm(chances[:, None], logits[..., None])[:, 0, 0]
    loss = total + negative_entropy - common
    if kind == "kl":
        return loss, shares.sub_(chances), best, acceptance
    weight = (-_SLOPE * acceptance).exp()
    below = torch.where(shares < chances, shares, 0.0)
    towards = shares * below.sum(dim=-1, keepdim=True) - below  # of 1 - sum min(p, q)
    gradient = shares.sub_(chances).mul_(weight[:, None])
    gradient += towards.mul_((1 - weight)[:, None])
    return weight * loss + (1 - weight) * (1 - acceptance), gradient, best, acceptance


def head_loss(
    guesses: torch.Tensor,
    head: Head | None,
    chances: Chances,
    labels: torch.Tensor,
    kind: SoftLoss,
    ranked: Callable[[slice, torch.Tensor], None] | None = None,
) -> Scored:
    """Score states [n, hidden] that go through an output head, or without one logits [n, columns].

    ranked: called with some rows and their logits; without it, acceptance may be left out.
    """
    apply: Any = _HeadLoss.apply
    found: Scored = apply(guesses, head, chances, labels, kind, ranked)
    return found


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        guesses: torch.Tensor,
        head: Head | None,
        chances: Chances,
        labels: torch.Tensor,
        kind: SoftLoss,
        ranked: Callable[[slice, torch.Tensor], None] | None,
    ) -> Scored:
        """Compute each row's gradient right away, while its logits exist."""
        gradients, parts = torch.empty_like(guesses), []
        size = rows_at_once(guesses.device, guesses.shape[1] if head is None else len(head[0]))
        for first in range(0, max(len(guesses), 1), size):  # once even if there are none
            rows = slice(first, first + size)
            logits = guesses[rows]
            if head is not None:
                logits = torch.addmm(head[1], logits, head[0].T)
            loss, gradient, *found = compare(
                logits, chances(rows), labels[rows], kind, ranked is not None
            )
            if ranked is not None:
                ranked(rows, logits)
            if ctx.needs_input_grad[0]:
                if head is not None:
                    torch.mm(gradient, head[0], out=gradients[rows])
                else:
                    gradients[rows] = gradient
            parts.append((loss, *found))
        ctx.save_for_backward(gradients)
        loss, best, acceptance = (torch.cat(each) for each in zip(*parts, strict=True))
        ctx.mark_non_differentiable(best, acceptance)
        return loss, best, acceptance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        """The gradient by the guesses alone."""
        (gradients,) = ctx.saved_tensors
        return gradients * by_loss[:, None], None, None, None, None, None
