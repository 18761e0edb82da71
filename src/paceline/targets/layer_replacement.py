"""Replace the linear layers of a model by faster products, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from paceline.kernels.block_layers import (
    Bfloat16Linear,
    BlockLinear,
    Int4Linear,
    Int8Linear,
    make_packed,
    move_matrices,
)
from paceline.kernels.blocks import BlockMatrix
from paceline.kernels.linear import (
    FastLinear,
    Maker,
    PackedAndPlainLinear,
    PlainLinear,
    UnpackableError,
    make_linear,
)
from paceline.kernels.memory import FilePages, WeightMemory
from paceline.kernels.shared_input import Projection, SharedInput
from paceline.kernels.stand_in import stacked_biases, weight_of
from paceline.targets.preparation import Preparation

Layer = Any  # nn.Linear, or transformers' Conv1D, whose weight is transposed

KINDS: dict[str, Maker] = {
    "fused": PlainLinear,
    "packed": make_packed,
    "packed+plain": PackedAndPlainLinear,
    "bfloat16": Bfloat16Linear,
    "int8": Int8Linear,
    "int4": Int4Linear,
}


@dataclass
class LayerReplacement:
    """The linear layers of one model, to be replaced.

    done: receives what was done. kind: of the products. memory: for their weights.
    """

    model: Any
    done: Preparation
    kind: Maker
    memory: WeightMemory
    _pages: FilePages = field(default_factory=FilePages, init=False)
    _places: dict[nn.Module, list[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name, module in self.model.named_modules(remove_duplicate=False):
            self._places.setdefault(module, []).append(name)

    def replace(self, shared: list[list[Layer]], linears: list[Layer]) -> None:
        """Replace linear layers by products; those in blocks that share an input become one.

        shared: groups of layers with one input, `linears` and layers in blocks.
        """
        self._pages.forget(self.model.parameters())
        for group in _largest_first(shared, linears):
            self._replace(group)
        for group in shared:
            alike: dict[str, list[BlockLinear]] = {}  # by format
            for layer in group:
                if isinstance(layer, BlockLinear) and layer.rounded:
                    alike.setdefault(layer.matrix.format, []).append(layer)
            for layers in alike.values():
                if len(layers) > 1:
                    self._stack_blocks(layers)

    def _replace(self, group: list[Layer]) -> None:
        """Replace layers that share an input, or a single layer, by one product."""
        try:
            product = self._product(group)
        except UnpackableError as reason:
            if len(group) > 1:
                for layer in group:
                    self._replace([layer])
            else:
                self.done.left[str(reason)] += 1
            return
        self.done.linears += len(group)
        self.done.products += 1
        self._put(product, group, [len(weight_of(layer)) for layer in group])
        self._pages.forget(layer.weight for layer in group)
        for layer in group:  # a remaining reference to it keeps no weights alive
            layer.weight = layer.bias = None
        move_matrices(product, self.memory)

    def _stack_blocks(self, layers: list[BlockLinear]) -> None:
        """Replace layers of one format that share an input by one product, if they can be stacked.
        Outputs stay bit-identical."""
        matrix = BlockMatrix.stack([layer.matrix for layer in layers])
        if matrix is None:
            return
        sizes = [layer.out_features for layer in layers]
        biases = stacked_biases([layer.bias for layer in layers], sizes)
        self._put(BlockLinear(matrix, biases), layers, sizes)
        for layer in layers:
            del layer.matrix
        self.done.products -= len(layers) - 1

    def _put(self, product: FastLinear, layers: Sequence[Layer], sizes: list[int]) -> None:
        """Put a product, or its projections, in the places of layers with so many outputs."""
        shared = SharedInput(product, sizes)
        for part, layer in enumerate(layers):
            made = Projection(shared, part) if len(layers) > 1 else product
            for name in self._places[layer]:
                self.model.set_submodule(name, made)

    def _product(self, group: list[Layer]) -> FastLinear:
        """Make the product for a group.

        Raises UnpackableError if torch or the processor does not support it.
        """
        kind, head = self.kind, self.model.get_output_embeddings()
        is_head = head is not None and not set(head.modules()).isdisjoint(group)
        if is_head and kind is Int4Linear:
            kind = Int8Linear  # a 4-bit head gets too many tokens wrong
        return make_linear(kind, *_stack(group))


def _largest_first(shared: list[list[Layer]], linears: list[Layer]) -> list[list[Layer]]:
    """Sort the groups, and every other layer as its own group, largest first: old and new weights
    of the largest coexist before anything else is added."""
    of_floats = [[layer for layer in group if layer in linears] for group in shared]
    together = {layer for group in of_floats for layer in group}
    groups = [*filter(None, of_floats), *([each] for each in linears if each not in together)]
    return sorted(groups, key=lambda group: -sum(layer.weight.nbytes for layer in group))


def _stack(group: list[Layer]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Stack the weights [outputs of all, inputs] and biases of a group."""
    weights = [weight_of(layer) for layer in group]
    if len(group) == 1:
        return weights[0].contiguous(), group[0].bias
    if len({(weight.dtype, weight.device) for weight in weights}) > 1:
        raise UnpackableError("layers with the same input that differ in precision or device")
    biases = stacked_biases([layer.bias for layer in group], [*map(len, weights)])
    return torch.cat(weights), biases
