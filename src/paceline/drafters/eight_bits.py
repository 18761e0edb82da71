"""Trained tensors in 8 bits, for folders that should stay small.

A matrix [..., outputs, inputs], any tensor of two or more dimensions that is no bias, is stored as
integers from -127 to 127, and under its name plus ".scale" the float16 factors of each group of 32
inputs, or of whole rows if 32 does not divide them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

_GROUP, _MOST = 32, 127
_SCALE = ".scale"


def in_eight_bits(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same, with float matrices in 8 bits; all others stay as they are."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or name.endswith("bias") or not tensor.is_floating_point():
            found[name] = tensor
            continue
        groups = tensor.float().reshape(*tensor.shape[:-1], _groups(tensor.shape[-1]), -1)
        scale = (groups.abs().amax(dim=-1) / _MOST).half()
        # For a group of zeros, or nearly so, any scale will do.
        steps = groups / scale.float().masked_fill(scale == 0, 1.0)[..., None]
        rounded = steps.round().clamp(-_MOST, _MOST)
        found[name] = rounded.flatten(-2).to(torch.int8)
        found[name + _SCALE] = scale
    return found


def in_floats(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse; floats stay as they are."""
    found: dict[str, torch.Tensor] = {}
    scales = scale_shapes(tensors)
    for name, tensor in tensors.items():
        if name in scales:
            continue
        if tensor.dtype == torch.int8:
            scale = tensors[name + _SCALE].float()
            groups = tensor.float().reshape(*scale.shape, -1)
            tensor = (groups * scale[..., None]).flatten(-2)
        found[name] = tensor
    return found


def scale_shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Names of the scales that must be present, with their shapes."""
    return {
        name + _SCALE: (*tensor.shape[:-1], _groups(tensor.shape[-1]))
        for name, tensor in tensors.items()
        if tensor.dtype == torch.int8 and tensor.dim()
    }


def _groups(inputs: int) -> int:
    return 1 if inputs % _GROUP else inputs // _GROUP
