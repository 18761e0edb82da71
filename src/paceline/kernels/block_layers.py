"""Layers on matrices in blocks: linear ones, and tables of embeddings."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from paceline.kernels.blocks import FLOATS, FORMATS, BlockMatrix, in_floats, quantised
from paceline.kernels.linear import FastLinear, PackedLinear, UnpackableError
from paceline.kernels.memory import WeightMemory, return_freed
from paceline.kernels.native.calls import kernels, unavailable

_MOVED = 64 << 20
"""Bytes between two returns of what moved matrices have left."""


class BlockLinear(FastLinear):
    """A linear layer on a matrix in blocks.

    matrix: [out_features, in_features padded to whole groups]. bias: [out_features].
    in_features: of the rows; the matrix's by default.
    """

    def __init__(
        self, matrix: BlockMatrix, bias: torch.Tensor | None, in_features: int | None = None
    ) -> None:
        super().__init__((matrix.outputs, in_features or matrix.inputs), matrix.nbytes, bias)
        self.matrix = matrix
        self.bias = None if bias is None else bias.detach().float()
        self._missing = matrix.inputs - self.in_features

    @property
    def rounded(self) -> bool:
        """Whether its weights have few bits: then rows are rounded, too."""
        return self.matrix.format in FORMATS

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        if self._missing:
            rows = F.pad(rows, (0, self._missing))
        if rows.dtype == torch.float32:
            return self.matrix.product(rows, self.bias)
        return self.matrix.product(rows.float(), self.bias).to(rows.dtype)


class _OfFloats(BlockLinear):
    """A layer of floats, rounded to `bits` when it is made. Raises UnpackableError if the kernels
    cannot run, and off the CPU."""

    bits: ClassVar[int]

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        if weight.device.type != "cpu":
            raise UnpackableError(f"weights on {weight.device.type}")
        if why := unavailable():
            raise UnpackableError(why)
        super().__init__(self._packed(weight), bias, weight.shape[1])

    def _packed(self, weight: torch.Tensor) -> BlockMatrix:
        return quantised(weight, self.bits)


class FloatLinear(_OfFloats):
    """Weights in float32, bfloat16 or float16, unchanged, for our own products in float32. Raises
    UnpackableError for float64, too."""

    def _packed(self, weight: torch.Tensor) -> BlockMatrix:
        if weight.dtype not in FLOATS:
            raise UnpackableError(f"weights in {str(weight.dtype).removeprefix('torch.')}")
        return in_floats(weight)


def make_packed(weight: torch.Tensor, bias: torch.Tensor | None) -> FastLinear:
    """A layer of weights in their own precision, for our own products, else for oneDNN's.

    Raises UnpackableError if neither is available.
    """
    try:
        return FloatLinear(weight, bias)
    except UnpackableError:
        return PackedLinear(weight, bias)


class Bfloat16Linear(_OfFloats):
    """Weights in bfloat16; rows are rounded to bfloat16, too: the processor multiplies such numbers
    at twice the rate. Sums are float32. Raises UnpackableError if it has no such instructions."""

    def _packed(self, weight: torch.Tensor) -> BlockMatrix:
        format = kernels().bfloat16_products
        if not format:
            raise UnpackableError("this processor has no products in bfloat16")
        return in_floats(weight.bfloat16(), format)


class Int4Linear(_OfFloats):
    """4-bit weights in groups of 32 with a scale and an offset each, 8-bit activations."""

    bits = 4


class Int8Linear(_OfFloats):
    """8-bit weights in groups of 32 with a scale each, 8-bit activations."""

    bits = 8


class BlockEmbedding(nn.Module):
    """A table of embeddings in blocks.

    matrix: [num_embeddings, embedding_dim]. dtype: of the output. scale: all numbers are multiplied
    by it, as Gemma's are. Ids out of range raise ValueError.
    """

    def __init__(
        self,
        matrix: BlockMatrix,
        dtype: torch.dtype = torch.float32,
        scale: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.outputs, matrix.inputs
        self.dtype = dtype
        self.embed_scale = None if scale is None else scale.to(dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[...] -> [..., embedding_dim]."""
        found = self.matrix.values(ids.reshape(-1)).to(self.dtype)
        rows = found.view(*ids.shape, self.embedding_dim)
        return rows if self.embed_scale is None else rows * self.embed_scale


def move_matrices(module: nn.Module, memory: WeightMemory) -> None:
    """Move all matrices in blocks of a module to `memory`; see `BlockMatrix.move`."""
    moved = 0
    for each in module.modules():
        if isinstance(each, BlockLinear | BlockEmbedding) and each.matrix.move(memory):
            moved += each.matrix.nbytes
            if moved > _MOVED:  # or a model would be in memory twice
                return_freed()
                moved = 0
