"""Linear layers on quantised weights.

Both quantise every row by itself, so that what a row yields does not depend on the other rows of
the pass: drafted and plain decoding on the quantised model give the same text.
"""

from __future__ import annotations

from functools import cache

import torch

from paceline.kernels.linear import FastLinear, UnpackableError

__all__ = ["Int4Linear", "Int8Linear"]

_ZERO = 128  # activations are unsigned for the processor's dot product: 128 stands for 0


class Int8Linear(FastLinear):
    """8-bit weights, one scale per output; 8-bit activations, one scale per row (W8A8).

    The products are summed as integers, so a row's result is the same bit for bit in a pass of
    any width. Raises UnpackableError where the processor has no exact 8-bit dot product (VNNI).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        _check_cpu(weight)
        if not _sums_are_exact():
            raise UnpackableError("8-bit products that overflow on this processor (no VNNI)")
        super().__init__(weight, bias)
        weight = weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        quantised = (weight / scale[:, None]).round_().to(torch.int8)
        self.weight_bytes = quantised.nbytes + scale.nbytes
        self._product = _IntegerProduct(quantised, scale)
        self._bias = None if bias is None else bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        flat = rows.reshape(-1, self.in_features).float()
        scale = flat.abs().amax(dim=1, keepdim=True).clamp_(min=1e-12).div_(127)
        quantised = (flat / scale).round_().add_(_ZERO).to(torch.uint8)
        out = self._product(quantised).mul_(scale)
        if self._bias is not None:
            out += self._bias
        return out.view(*rows.shape[:-1], self.out_features).to(rows.dtype)


class _IntegerProduct:
    """8-bit rows times 8-bit weights [outputs, inputs], each output times its scale."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self._run = torch.ops.onednn.qlinear_pointwise.default
        packed = torch.ops.onednn.qlinear_prepack(weight, [8, weight.shape[1]])
        zero_points = torch.zeros(len(scale), dtype=torch.int64)
        output = (1.0, 0, torch.float32)  # scale, zero point and type
        held: tuple[object, ...] = (packed, scale, zero_points, None, *output, "none", [], "")
        self._held = held

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """uint8 [rows, inputs], 128 standing for 0 -> float32 [rows, outputs]."""
        out: torch.Tensor = self._run(rows, 1.0, _ZERO, *self._held)
        return out


@cache
def _sums_are_exact() -> bool:
    """Whether the largest values come out right: older processors add pairs of them in 16 bits."""
    weight = torch.full((16, 64), 127, dtype=torch.int8)
    largest = _IntegerProduct(weight, torch.ones(16))(torch.full((5, 64), 255, dtype=torch.uint8))
    return bool((largest == 64 * 127 * (255 - _ZERO)).all())


class Int4Linear(FastLinear):
    """4-bit weights in groups of 32 with scale and offset each, bfloat16 activations.

    The smallest to read, so the fastest for one token; its cost grows with every further row.
    Raises UnpackableError for sizes that are no multiple of 32 and 16.
    """

    group = 32

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        _check_cpu(weight)
        super().__init__(weight, bias)
        if self.in_features % self.group or self.out_features % 16:
            raise UnpackableError("sizes that are no multiple of 32 inputs and 16 outputs")
        groups = weight.detach().float().view(self.out_features, -1, self.group)
        low, high = groups.amin(dim=2), groups.amax(dim=2)
        scale = ((high - low) / 15).clamp(min=1e-8)
        # The kernel computes (code - 8) * scale + offset, with both in bfloat16.
        scale, offset = scale.bfloat16(), (low + 8 * scale).bfloat16()
        codes = (groups - offset.float()[..., None]) / scale.float()[..., None] + 8
        codes = codes.round_().clamp_(0, 15).to(torch.int32).view(self.out_features, -1)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        scales = torch.stack([scale, offset], dim=-1).transpose(0, 1).contiguous()
        self.weight_bytes = self._packed.nbytes + scales.nbytes
        self._scales = scales
        self._bias = None if bias is None else bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        flat = rows.reshape(-1, self.in_features).bfloat16()
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            flat, self._packed, self.group, self._scales
        )
        out = out.to(rows.dtype)
        if self._bias is not None:
            out += self._bias
        return out.view(*rows.shape[:-1], self.out_features)


def _check_cpu(weight: torch.Tensor) -> None:
    if weight.device.type != "cpu":
        raise UnpackableError(f"weights on {weight.device.type}")
