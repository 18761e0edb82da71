"""Which numbers of which value a tensor holds: layouts by example.

A step computes some numbers for every row. Tensors show them in many shapes: split into heads,
transposed, sliced, joined, negated. Here a code names each element of a tensor, and an operator
that only moves elements is applied to the codes. So its meaning need not be known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from paceline.targets.one_call.recording import ROWS, UnfitError

_ROW_BITS, _FEATURE_BITS = 4, 24
_ATEN = torch.ops.aten

Codes = torch.Tensor
"""int64, in a tensor's shape: value, feature (24 bits) and row (4 bits) side by side; negative for
a negated number. Values count from 1."""


def row_axis(shape: torch.Size) -> int:
    """The axis of a tensor's rows: the only one of length `ROWS`."""
    axes = [axis for axis, size in enumerate(shape) if size == ROWS]
    if not axes:
        raise UnfitError("it computes one number from all positions (as longrope does)")
    if len(axes) != 1:
        raise UnfitError(f"the axis of rows is ambiguous in a tensor of shape {list(shape)}")
    return axes[0]


def new_codes(value: int, shape: torch.Size, axis: int) -> Codes:
    """Make codes for value number `value`, whose features fill a tensor of this shape, with its
    rows in order along `axis`."""
    count = shape.numel() // shape[axis]
    if count >= 1 << _FEATURE_BITS:
        raise UnfitError(f"a value has too many numbers per row ({count})")
    others = [size for place, size in enumerate(shape) if place != axis]
    features = torch.arange(count, device="cpu").view(others).unsqueeze(axis)
    return ((value << _FEATURE_BITS) + features << _ROW_BITS) + _rows_along(axis, len(shape))


def _rows_along(axis: int, axes: int) -> torch.Tensor:
    """The numbers of rows along one of so many axes."""
    rows = torch.arange(ROWS, device="cpu")
    return rows.view([-1 if place == axis else 1 for place in range(axes)])


def value_of(code: int) -> int:
    """The number of an element's value."""
    return abs(code) >> _FEATURE_BITS + _ROW_BITS


@dataclass(frozen=True)
class Features:
    """What a tensor holds for every row, in element order.

    value, feature, sign: int64 [count] each. axis: that of the rows.
    """

    value: torch.Tensor
    feature: torch.Tensor
    sign: torch.Tensor
    axis: int

    @property
    def values(self) -> list[int]:
        """Numbers of the values it holds."""
        return sorted(set(self.value.tolist()))


def features_of(codes: Codes) -> Features:
    """Convert codes to features. Raises UnfitError if rows are mixed."""
    for axis, size in enumerate(codes.shape):
        if size != ROWS:
            continue
        first = codes.narrow(axis, 0, 1)  # row 0, whose row bits are zero
        if torch.equal(codes, first + first.sign() * _rows_along(axis, codes.dim())):
            flat = first.reshape(-1)
            place = flat.abs() >> _ROW_BITS
            feature = place & (1 << _FEATURE_BITS) - 1
            return Features(place >> _FEATURE_BITS, feature, flat.sign(), axis)
    raise UnfitError(f"rows are mixed in a tensor of shape {list(codes.shape)}")


def _same(codes: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return codes


def _view(codes: torch.Tensor, shape: Any) -> torch.Tensor:
    # A view keeps the order of elements; codes may lie in memory in any order.
    return codes.reshape(shape)


def _converted(codes: torch.Tensor, **options: Any) -> torch.Tensor:
    if options.get("dtype") not in (None, torch.float32):
        raise UnfitError(f"it converts to {options['dtype']}")
    return codes


MOVES: dict[Any, Callable[..., Any]] = {
    _ATEN.view.default: _view,
    _ATEN._unsafe_view.default: _view,
    _ATEN.detach.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.clone.default: _same,
    _ATEN.lift_fresh.default: _same,
    _ATEN._to_copy.default: _converted,
    **{
        each: each
        for each in (
            _ATEN.unsqueeze.default,
            _ATEN.squeeze.dim,
            _ATEN.transpose.int,
            _ATEN.permute.default,
            _ATEN.t.default,
            _ATEN.expand.default,
            _ATEN.slice.Tensor,
            _ATEN.select.int,
            _ATEN.split.Tensor,
            _ATEN.split_with_sizes.default,
            _ATEN.unbind.int,
            _ATEN.cat.default,
            _ATEN.stack.default,
            _ATEN.neg.default,
        )
    },
}
"""Operators that only move elements or flip signs -> the same on codes."""

CONSTANTS = {_ATEN.new_full, _ATEN.new_zeros, _ATEN.full_like, _ATEN.zeros_like}
"""Operators whose result does not depend on their input's numbers."""
