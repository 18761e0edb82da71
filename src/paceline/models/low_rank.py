"""Low-rank updates of a base's layers (LoRA, arXiv 2106.09685), for drafts too large to store.

Of a linear layer, two thin matrices are trained and stored; their product is added to the base's
weight when the draft model is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from paceline.errors import ModelError, UsageError
from paceline.kernels.linear import FastLinear
from paceline.kernels.shared_input import Projection
from paceline.kernels.token_table import has_rows, part_of_table, rows_of
from paceline.models.draft_model import layers_of

DOWN, UP = "lora_A.weight", "lora_B.weight"
"""Names, below a linear layer's, of its update: [rank, inputs] and [outputs, rank]."""


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


def check_linear(model: PreTrainedModel) -> None:
    """Raise UsageError for a model that `with_low_rank` cannot change. Its weights may be in
    blocks."""
    stack = model.get_submodule(layers_of(model))
    if not any(type(each) is nn.Linear or isinstance(each, FastLinear) for each in stack.modules()):
        raise UsageError(
            f"the layers of {type(model).__name__} have no linear layers that could get an update "
            "of low rank: leave out --rank"
        )


def with_low_rank(draft: PreTrainedModel, rank: int) -> set[str]:
    """Give every linear layer in a model's decoder layers an update, in place; returns the names of
    their weights, which must not learn. Raises UsageError if there is none."""
    check_linear(draft)
    place = layers_of(draft)
    stack = draft.get_submodule(place)
    linears = {name: each for name, each in stack.named_modules() if type(each) is nn.Linear}
    for name, layer in linears.items():
        stack.set_submodule(name, LowRankLinear(layer, min(rank, *layer.weight.shape)))
    return {f"{place}.{name}.weight" for name in linears}


@torch.no_grad()
def merged(
    base: PreTrainedModel, layers: Sequence[int], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A draft's tensors with every update added to the weight of the base's layer.

    base: prepared or not. layers: of the base, that the draft was made of. tensors: of a folder.

    Raises ModelError if updates do not fit the base's layers, or its weights cannot be read.
    """
    found = dict(tensors)
    for name in [name for name in tensors if name.endswith(f".{DOWN}")]:
        place = name.removesuffix(f".{DOWN}")
        down, up = found.pop(name).float(), found.pop(f"{place}.{UP}", None)
        weight = _weight(base, layers, place)
        if up is None or (len(up), down.shape[1]) != weight.shape or up.shape[1] != len(down):
            raise ModelError(f"the update of {place} does not fit the layer it belongs to")
        found[f"{place}.weight"] = torch.addmm(
            weight.float(), up.float().to(weight.device), down.to(weight.device)
        ).to(part_of_table(base).dtype)
    return found


def _weight(base: PreTrainedModel, layers: Sequence[int], place: str) -> torch.Tensor:
    """The weight of the base that belongs to a linear layer of the draft."""
    stack = layers_of(base)
    number, _, rest = place.removeprefix(f"{stack}.").partition(".")
    try:
        layer = base.get_submodule(f"{stack}.{layers[int(number)]}.{rest}")
    except (AttributeError, ValueError, IndexError) as error:
        raise ModelError(f"{type(base).__name__} has no layer for the update of {place}") from error
    weight = weight_of(layer)
    if weight is None:
        raise ModelError(
            f"the draft model changes {place}, whose weight was packed and cannot be read: load "
            "the model with weights='native' (--weights native)"
        )
    return weight


def weight_of(layer: Any) -> torch.Tensor | None:
    """The weight [outputs, inputs] of a linear layer or of its stand-in; rounded ones as floats.
    None if it can no longer be read, as in oneDNN's layout."""
    first, count = 0, layer.out_features
    if isinstance(layer, Projection):
        first, layer = sum(layer.shared.sizes[: layer.part]), layer.shared.linear
    if not has_rows(layer):
        return None
    weight = rows_of(layer, torch.arange(first, first + count, device="cpu"))
    return None if weight.is_meta else weight[:, : layer.in_features]
