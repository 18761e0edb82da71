"""Which numbers of which value a tensor holds: layouts by example.

What a step computes are some numbers for every row. Tensors show them in many shapes: split into
heads, transposed, cut, joined, negated. Here every element of a tensor is named by a code, and an
operator that only moves elements moves codes. So no such operator has to be known by what it means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.targets.one_call.recording import ROWS, UnfitError

__all__ = ["FEATURES", "Codes", "Features", "features_of", "new_codes", "row_axis"]

FEATURES = 1 << 24

Codes = torch.Tensor
"""int64, of a tensor's shape: 1 + (value x 2^24 + feature) x ROWS + row, negative where the number
has the other sign."""


def row_axis(shape: torch.Size) -> int:
    """The axis of a tensor's rows: the only one that is so long."""
    axes = [axis for axis, size in enumerate(shape) if size == ROWS]
    if not axes:
        raise UnfitError("it makes one number of all positions (as longrope does)")
    if len(axes) != 1:
        raise UnfitError(f"a tensor of {list(shape)} does not show which axis its rows are")
    return axes[0]


def new_codes(value: int, shape: torch.Size, axis: int) -> Codes:
    """Of value number `value`, whose features lie in a tensor of this shape, its rows along
    `axis`, in their order."""
    others = [size for place, size in enumerate(shape) if place != axis]
    count = 1
    for size in others:
        count *= size
    if count >= FEATURES:
        raise UnfitError(f"a value has {count} numbers per row")
    features = torch.arange(count).view(others).unsqueeze(axis)
    rows = torch.arange(ROWS).view([-1 if place == axis else 1 for place in range(len(shape))])
    return 1 + (value * FEATURES + features) * ROWS + rows


@dataclass(frozen=True)
class Features:
    """What a tensor holds of every row, in its own order of elements.

    value, feature, sign: int64 [count] each. axis: that of the rows.
    """

    value: torch.Tensor
    feature: torch.Tensor
    sign: torch.Tensor
    axis: int

    @property
    def values(self) -> list[int]:
        """Numbers of the values that are held."""
        return sorted(set(self.value.tolist()))


def features_of(codes: Codes) -> Features:
    """Raises UnfitError for elements that do not lie row by row."""
    rows = (codes.abs() - 1) % ROWS
    for axis, size in enumerate(codes.shape):
        if size != ROWS:
            continue
        wanted = torch.arange(ROWS).view([-1 if each == axis else 1 for each in range(codes.dim())])
        if not bool((rows == wanted).all()):
            continue
        plain = codes.sign() * ((codes.abs() - 1) // ROWS + 1)
        first = plain.select(axis, 0)
        if bool((plain == first.unsqueeze(axis)).all()):
            flat = first.reshape(-1)
            place = flat.abs() - 1
            return Features(place // FEATURES, place % FEATURES, flat.sign(), axis)
    raise UnfitError(f"rows are mixed in a tensor of {list(codes.shape)}")
