"""The weights of linear layers, also after a model has been prepared."""

from __future__ import annotations

from typing import Any

import torch

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.shared_input import Projection

__all__ = ["weight_of"]


def weight_of(layer: Any) -> torch.Tensor | None:
    """The weight [outputs, inputs] of a linear layer or of its stand-in; rounded ones as floats.
    None if it can no longer be read, as in oneDNN's layout."""
    if not isinstance(layer, Projection):
        return _rows(layer, 0, layer.out_features)
    shared = layer.shared
    return _rows(shared.linear, sum(shared.sizes[: layer.part]), layer.out_features)


def _rows(layer: Any, first: int, count: int) -> torch.Tensor | None:
    if isinstance(layer, BlockLinear):
        found = layer.matrix.values(torch.arange(first, first + count))
        return found[:, : layer.in_features]
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.is_meta:
        return None
    return weight.detach()[first : first + count]
