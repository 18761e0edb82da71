"""What the modules of Medusa, Chimera and EAGLE share: they end in the target's output head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import nn
from torch.nn import functional as F

from paceline.errors import UsageError
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.choice import program_kind, quicken
from paceline.kernels.linear import PlainLinear, UnpackableError
from paceline.records import WordTable

_ROWS = 4  # Medusa's heads, or the nodes of a level of Chimera's tree

OutputHead = tuple[torch.Tensor, torch.Tensor]
"""Weights [outputs, hidden] and biases [outputs], see `Target.output_head`."""

Embed = Callable[[torch.Tensor], torch.Tensor]
"""Token ids int64 [...] -> the target's embeddings [..., hidden]."""

HeadWeights = Literal["fastest", "native", "packed", "int8"]
"""How linear layers store their weights for guessing. fastest: in 4 bits if the heads run as
programs on a CPU, else whatever is measured to be fastest for each. Guesses need not be exact."""

Compile = Callable[[Any, type[BlockLinear]], object | None]
"""A `HeadModule` and a kind of layer -> programs, see `HeadModule.ready`."""


def identities(size: int, count: int = 1, *, value: float = 1.0, zeros: int = 0) -> torch.Tensor:
    """[size, (zeros + count) * size]: blocks of zeros, then `value` times the identity, side by side.

    Uses nothing that imports torch's compiler on the meta device, as `torch.eye` does: whoever only
    checks parts would wait a second for it, and it takes 100 MB.
    """
    blocks = torch.zeros(size, zeros + count, size)
    blocks[:, zeros:].diagonal(dim1=0, dim2=2).fill_(value)
    return blocks.flatten(1)


class ResidualBlocks(nn.Module):
    """x + SiLU(W x + b), `layers` times, with separate weights for each of `heads` heads. Weights
    start at zero, which passes x through.

    Each layer has its own weights; in Medusa's code all layers of a head share them.
    """

    def __init__(self, heads: int, layers: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layers, heads, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(layers, heads, hidden))

    def forward(self, states: torch.Tensor, head: int | None = None) -> torch.Tensor:
        """[heads, n, hidden] -> the same; or [n, hidden] of one head -> the same."""
        for weight, bias in zip(self.weight, self.bias):
            if head is None:
                added = torch.baddbmm(bias[:, None], states, weight.mT)
            else:
                added = F.linear(states, weight[head], bias[head])
            states = states + F.silu(added)
        return states


class HeadModule(nn.Module):
    """A module that ends in a frozen output head.

    head: weights [outputs, hidden] and biases [outputs] of the target's output head, for the tokens
    that may be guessed. They are neither parameters nor stored.
    token_ids: [outputs] int64, which tokens these are; None: all, in order.

    words: the target's embeddings; None unless set.
    programs: what guesses instead of the modules, see `ready`; None if the modules do.
    outputs: columns of logits. hidden_size: of the target's states. device: where these must be.
    """

    config: Any

    def __init__(self, head: OutputHead, token_ids: torch.Tensor | None) -> None:
        super().__init__()
        weight, bias = head
        self.words: WordTable | None = None
        self.programs: Any = None
        self.device = weight.device
        self.outputs, self.hidden_size = weight.shape
        self.token_ids = None if token_ids is None else token_ids.to(self.device)
        self._dtype, self._bias = weight.dtype, bias
        self._head: nn.Module = PlainLinear(weight, bias)

    def shared_head(self, states: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., outputs], by the target's own output head."""
        found: torch.Tensor = self._head(states.to(self._dtype))
        return found

    def ready(self, weights: HeadWeights = "fastest", compiled: Compile | None = None) -> Self:
        """Prepare to guess, with linear layers of this kind; parameters are frozen. Returns itself.

        compiled: makes programs of this module with layers of a kind, or None if it has none;
        raises UnpackableError for an unavailable kind. Programs hold all weights that they need:
        the modules keep none and cannot run.

        Raises UsageError for unavailable weights.
        """
        self.to(self.device).requires_grad_(False).eval()
        try:
            kind = program_kind(self, weights)
            if kind is not None and compiled is not None:
                self.programs = compiled(self, kind)
            if self.programs is None:
                quicken(self, _ROWS, weights)
            else:
                self.apply(_empty)
        except UnpackableError as reason:
            raise UsageError(f"the heads cannot have {weights} weights here: {reason}") from None
        return self


def _empty(module: nn.Module) -> None:
    """Delete its own parameters and parts."""
    for name, _ in [*module.named_parameters(recurse=False), *module.named_children()]:
        delattr(module, name)
