"""Weights in their own precision, in the layout of the fastest product available for them."""

from __future__ import annotations

import torch

from paceline.kernels.block_layers import FloatLinear
from paceline.kernels.linear import FastLinear, PackedLinear, UnpackableError

__all__ = ["make_packed"]


def make_packed(weight: torch.Tensor, bias: torch.Tensor | None) -> FastLinear:
    """A layer for our own products, else for oneDNN's.

    Raises UnpackableError if neither is available.
    """
    try:
        return FloatLinear(weight, bias)
    except UnpackableError:
        return PackedLinear(weight, bias)
