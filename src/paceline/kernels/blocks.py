"""Products of weights that stay in the blocks of a GGUF file. A stand-in in plain torch: slow, and
right."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline.kernels.linear import FastLinear

__all__ = ["FORMATS", "BlockEmbedding", "BlockLinear", "BlockMatrix", "dequantise", "unavailable"]

FORMATS = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
"""Kinds of blocks that there are kernels for."""


def unavailable() -> str:
    """Why the kernels cannot run here, in a few words; "" where they can."""
    return ""


def dequantise(format: str, blocks: torch.Tensor, inputs: int) -> torch.Tensor:
    """Blocks uint8 [n, bytes per row] -> float32 [n, inputs]."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values = torch.from_numpy(dequantize(blocks.numpy(), GGMLQuantizationType[format]))
    return values.view(len(blocks), inputs)


class BlockMatrix:
    """A matrix [outputs, inputs] in blocks of one format. nbytes: that it takes."""

    def __init__(self, format: str, blocks: torch.Tensor, inputs: int) -> None:
        self.format = format
        self.outputs, self.inputs = len(blocks), inputs
        self.nbytes = blocks.nbytes
        self._blocks = blocks

    @classmethod
    def pack(
        cls, format: str, blocks: torch.Tensor, inputs: int, rows: torch.Tensor | None = None
    ) -> BlockMatrix:
        """From blocks uint8 [outputs, bytes per row]; output i is row rows[i] of them."""
        return cls(format, blocks.clone() if rows is None else blocks[rows], inputs)

    def values(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows float32 [count, inputs] for ids int64 [count]."""
        return dequantise(self.format, self._blocks[ids], self.inputs)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [..., inputs] -> float32 [..., outputs]."""
        return F.linear(rows, dequantise(self.format, self._blocks, self.inputs))


class BlockLinear(FastLinear):
    """`nn.Linear` on a matrix in blocks."""

    def __init__(self, matrix: BlockMatrix, bias: torch.Tensor | None) -> None:
        super().__init__(torch.empty(matrix.outputs, matrix.inputs, device="meta"), bias)
        self.weight_bytes = matrix.nbytes + (0 if bias is None else bias.nbytes)
        self.matrix = matrix
        self.bias = bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        out = self.matrix.product(rows.float()).to(rows.dtype)
        return out if self.bias is None else out + self.bias


class BlockEmbedding(nn.Module):
    """`nn.Embedding` on a matrix in blocks."""

    def __init__(self, matrix: BlockMatrix, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix = matrix
        self.dtype = dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[...] -> [..., inputs]."""
        found = self.matrix.values(ids.reshape(-1)).to(self.dtype)
        return found.view(*ids.shape, self.matrix.inputs)
