"""Move slots of a cache, in all layers at once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels, unavailable


class SlotMover:
    """Moves slots of CPU tensors [1, heads, slots, numbers], whose last dimension is contiguous.

    Torch's operators, two for each tensor, take longer than some drafts.

    can_move: whether these are all such tensors, and the library is available.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        fits = all(each.device.type == "cpu" and each.stride(-1) == 1 for each in tensors)
        self.can_move = fits and not unavailable()
        self._tensors = tensors if self.can_move else ()  # held, as the addresses are theirs
        self._stores = (native.Store * len(self._tensors))(*map(_store_of, self._tensors))

    def move(self, sources: Sequence[int], places: Sequence[int]) -> None:
        """Copy slots to other places, in order; no place may be a source after it is written."""
        old, new = (np.array(slots, dtype=np.int64) for slots in (sources, places))
        at = ctypes.addressof(self._stores)
        kernels().move(at, len(self._tensors), old.ctypes.data, new.ctypes.data, len(old))


def _store_of(tensor: torch.Tensor) -> native.Store:
    width = tensor.element_size()
    _, heads, _, numbers = tensor.shape
    strides = tensor.stride(1) * width, tensor.stride(2) * width
    return native.Store(tensor.data_ptr(), heads, *strides, numbers * width)
