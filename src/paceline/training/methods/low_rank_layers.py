"""Linear layers whose weights stay as they are and get an update of low rank (LoRA, arXiv
2106.09685)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from paceline.errors import UsageError
from paceline.models.draft_model import layers_of

__all__ = ["LowRankLinear", "with_low_rank"]


class LowRankLinear(nn.Module):
    """Outputs of a linear layer plus lora_B @ lora_A @ inputs; at first that is zero.

    Parameters have the names of the linear layer's, and those of LoRA; its weight does not learn.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        outputs, inputs = layer.weight.shape
        like: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        self.weight = layer.weight
        self.bias = layer.bias
        self.lora_A = nn.Linear(inputs, rank, bias=False, **like)
        self.lora_B = nn.Linear(rank, outputs, bias=False, **like)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., inputs] -> [..., outputs]."""
        update: torch.Tensor = self.lora_B(self.lora_A(rows))
        return F.linear(rows, self.weight, self.bias) + update


def with_low_rank(draft: PreTrainedModel, rank: int) -> set[str]:
    """Give every linear layer in a model's decoder layers an update, in place; returns the names of
    their weights, which must not learn.

    Raises UsageError if there is none.
    """
    place = layers_of(draft)
    stack = draft.get_submodule(place)
    linears = {name: each for name, each in stack.named_modules() if type(each) is nn.Linear}
    if not linears:
        raise UsageError(
            f"the layers of {type(draft).__name__} have no linear layers that could get an update "
            "of low rank: leave out --rank"
        )
    for name, layer in linears.items():
        stack.set_submodule(name, LowRankLinear(layer, min(rank, *layer.weight.shape)))
    return {f"{place}.{name}.weight" for name in linears}
