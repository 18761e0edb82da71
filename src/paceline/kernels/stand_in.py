"""Linear layers in recordings: only their sizes matter, and who computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D


class LinearStandIn(nn.Module):
    """Stands for a linear layer in a recording; computes zeros.

    of: a tuple, so that the layer it stands for is no part of this module.
    """

    def __init__(self, linear: nn.Linear | Conv1D) -> None:
        super().__init__()
        self.of = (linear,)
        weight = self.weight
        self.out_features, self.in_features = weight.shape

    @property
    def weight(self) -> torch.Tensor:
        """[outputs, inputs], of the layer it stands for."""
        return weight_of(self.of[0])

    @property
    def bias(self) -> torch.Tensor | None:
        """[outputs], of the layer it stands for."""
        bias: Any = self.of[0].bias
        return None if bias is None else bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> zeros [..., out_features]."""
        return rows.new_zeros(*rows.shape[:-1], self.out_features)


def weight_of(linear: nn.Linear | Conv1D) -> torch.Tensor:
    """The weight of a layer, [outputs, inputs]; that of a `Conv1D` is transposed."""
    weight: torch.Tensor = linear.weight.detach()
    return weight.T if isinstance(linear, Conv1D) else weight


@torch.inference_mode(False)
@torch.no_grad()
def stacked(linears: Sequence[LinearStandIn]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights [outputs of all, inputs] and biases of layers, one below the other. The layers
    themselves keep their weights as parts of the result, so that memory holds them once."""
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    weights = [linear.weight for linear in linears]
    sizes = [len(weight) for weight in weights]
    whole = _neighbours(weights)
    if whole is None:
        whole = torch.cat(weights)
        for linear, part in zip(linears, torch.split(whole, sizes), strict=True):
            own: Any = linear.of[0]
            own.weight.data = part.T if isinstance(own, Conv1D) else part
    return whole, stacked_biases([linear.bias for linear in linears], sizes)


def stacked_biases(
    biases: Sequence[torch.Tensor | None], sizes: Sequence[int]
) -> torch.Tensor | None:
    """Biases of layers with so many outputs, one below the other, zeros where one has none; None if
    all have none."""
    some = next((each for each in biases if each is not None), None)
    if some is None:
        return None
    pairs = zip(biases, sizes, strict=True)
    return torch.cat([some.new_zeros(size) if bias is None else bias for bias, size in pairs])


def _neighbours(weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Weights that follow one another in memory as one tensor; None if they do not."""
    first = weights[0]
    begin, store = first.data_ptr(), first.untyped_storage().data_ptr()
    for each in weights:
        alike = each.is_contiguous() and each.untyped_storage().data_ptr() == store
        if not alike or each.data_ptr() != begin:
            return None
        begin += each.nbytes
    rows = sum(map(len, weights))
    return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))
