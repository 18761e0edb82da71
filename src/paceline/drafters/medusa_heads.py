"""Medusa's decoding heads: residual blocks on the target's last state (Cai et al. 2024, section
2.1.1), ending in a head of their own or, in the compact form, in the target's.

A full head for a small model with a large vocabulary is as large as a fifth of the model (28 million
numbers at 576 x 49,152); a compact one stores the blocks alone (0.3 million).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import torch
from torch import nn
from torch.nn import functional as F

from paceline.drafters.guesses import Guesses, guesses_of
from paceline.drafters.trained_heads import MedusaConfig

if TYPE_CHECKING:
    from paceline.protocols import ShowsStates

__all__ = ["HeadModule", "MedusaHeads", "OutputHead", "ResidualBlocks"]

OutputHead = tuple[torch.Tensor, torch.Tensor]
"""Weights [outputs, hidden] and biases [outputs], see `ShowsStates.output_head`."""


class ResidualBlocks(nn.Module):
    """x + SiLU(W x + b), `layers` times, with weights of its own for each of `heads` heads; they
    begin as nothing, so that x goes through.

    Each layer has its own weights; in Medusa's code all layers of a head share one.
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
    """What the modules of Medusa and Chimera have in common: a frozen output head at the end.

    head: weights [outputs, hidden] and biases [outputs] of the target's output head, for the tokens
    that may be guessed. They are neither parameters nor stored.
    token_ids: [outputs] int64, which tokens these are; None: all, in their order.
    """

    def __init__(self, head: OutputHead, token_ids: torch.Tensor | None) -> None:
        super().__init__()
        self._head = head
        self.token_ids = None if token_ids is None else token_ids.to(head[0].device)

    @property
    def hidden_size(self) -> int:
        """Size of the target's states."""
        return self._head[0].shape[1]

    @property
    def outputs(self) -> int:
        """Columns of logits."""
        return len(self._head[0])

    @property
    def device(self) -> torch.device:
        """Where states have to be."""
        return self._head[0].device

    def shared_head(self, states: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., outputs], by the target's own output head."""
        weight, bias = self._head
        return F.linear(states.to(weight.dtype), weight, bias)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The trained parts by name, detached copies."""
        return {name: part.detach().clone() for name, part in self.named_parameters()}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Take over trained parts, in any precision; all of them must be there. Returns itself."""
        with torch.no_grad():
            for name, part in self.named_parameters():
                part.copy_(tensors[name])
        return self

    def ready(self, target: ShowsStates) -> Self:
        """Made ready to guess for a target, which it keeps: on its device, nothing learns. Returns
        itself."""
        self._target = (target,)  # kept out of the module's own parts
        return self.to(self.device).requires_grad_(False).eval()


class MedusaHeads(HeadModule):
    """All heads side by side.

    Parameters: "blocks.weight" [layers, heads, hidden, hidden], "blocks.bias" [layers, heads,
    hidden]; with full heads "output" [heads, outputs, hidden], which begins as the target's.
    """

    def __init__(
        self, config: MedusaConfig, head: OutputHead, token_ids: torch.Tensor | None = None
    ) -> None:
        super().__init__(head, token_ids)
        self.config = config
        if config.layers:
            self.blocks = ResidualBlocks(config.heads, config.layers, self.hidden_size)
        if config.form == "full":
            self.output = nn.Parameter(head[0].float().expand(config.heads, -1, -1).clone())
        self.to(self.device)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [n, hidden] of tokens that the target has read -> logits [n, heads, outputs] for
        the tokens behind the next one."""
        found = states.float().expand(self.config.heads, -1, -1)
        if self.config.layers:
            found = self.blocks(found)
        if self.config.form == "full":
            logits = torch.bmm(found, self.output.mT) + self._head[1]
        else:
            logits = self.shared_head(found)
        return logits.transpose(0, 1).float()

    @torch.no_grad()
    def guess(self, state: torch.Tensor, ranks: int) -> Guesses:
        """The `ranks` likeliest tokens of every head behind the state [1, hidden] of the last token
        that the target has read."""
        return guesses_of(self(state)[0], ranks, self.token_ids)
