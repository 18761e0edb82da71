"""Fuse layers in blocks that read the same input into one product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.blocks import BlockMatrix
from paceline.kernels.shared_input import Projection, SharedInput

__all__ = ["stack_blocks"]


def stack_blocks(
    model: nn.Module,
    group: Sequence[BlockLinear],
    places: Mapping[nn.Module, Sequence[str]],
) -> int:
    """Replace the layers of each format by one product; return how many products that saves.

    group: layers with one input, in call order. places: the names of every layer. Outputs stay
    bit-identical.
    """
    formats: dict[str, list[BlockLinear]] = {}
    for layer in group:
        formats.setdefault(layer.matrix.format, []).append(layer)
    return sum(_stack(model, layers, places) for layers in formats.values() if len(layers) > 1)


def _stack(
    model: nn.Module, layers: Sequence[BlockLinear], places: Mapping[nn.Module, Sequence[str]]
) -> int:
    matrix = BlockMatrix.stack([layer.matrix for layer in layers])
    if matrix is None:
        return 0
    shared = SharedInput(
        BlockLinear(matrix, _biases(layers)), [each.out_features for each in layers]
    )
    for part, layer in enumerate(layers):
        for name in places[layer]:
            model.set_submodule(name, Projection(shared, part))
        del layer.matrix  # a remaining reference to the layer keeps no weights alive
    return len(layers) - 1


def _biases(layers: Sequence[BlockLinear]) -> torch.Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    none = torch.zeros(max(each.out_features for each in layers), dtype=torch.float32)
    biases = (none[: each.out_features] if each.bias is None else each.bias for each in layers)
    return torch.cat([*biases])
