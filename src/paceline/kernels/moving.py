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
    """

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._stores = (native.Store * 0)()

    @staticmethod
    def can_move(tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are all such tensors, and the library is available."""
        return not unavailable() and all(
            each.device.type == "cpu" and each.stride(-1) == 1 for each in tensors
        )

    def move(
        self, tensors: Sequence[torch.Tensor], sources: Sequence[int], places: Sequence[int]
    ) -> None:
        """Copy slots to other places, in order; no place may be a source after it is written."""
        if [*map(id, tensors)] != [*map(id, self._tensors)]:
            self._tensors = list(tensors)
            self._stores = (native.Store * len(tensors))(*map(_store_of, tensors))
        old, new = (np.array(slots, dtype=np.int64) for slots in (sources, places))
        at = ctypes.addressof(self._stores)
        kernels().move(at, len(self._tensors), old.ctypes.data, new.ctypes.data, len(old))


def _store_of(tensor: torch.Tensor) -> native.Store:
    width = tensor.element_size()
    _, heads, _, numbers = tensor.shape
    strides = tensor.stride(1) * width, tensor.stride(2) * width
    return native.Store(tensor.data_ptr(), heads, *strides, numbers * width)
