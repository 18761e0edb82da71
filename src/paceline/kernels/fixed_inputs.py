"""Inputs that always have the same addresses on a device, as recorded work needs them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import ArrayLike


class FixedInputs:
    """Tensors that never move: `fill` writes new contents into all of them, in one transfer.

    numbers, flags: shapes of the int64 and of the bool tensors. pinned: a GPU fetches them without
    the host waiting; use it for inputs that are reused.

    tensors: on `device`, numbers first.
    """

    def __init__(
        self,
        numbers: Sequence[tuple[int, ...]],
        flags: Sequence[tuple[int, ...]],
        device: torch.device,
        *,
        pinned: bool = False,
    ) -> None:
        shapes = [(torch.int64, each) for each in numbers] + [(torch.bool, each) for each in flags]
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in shapes]
        pinned = pinned and device.type == "cuda"
        self._host = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._device = self._host if device.type == "cpu" else self._host.to(device)
        self._fetched = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

        def parts(block: torch.Tensor) -> list[torch.Tensor]:
            cut = torch.split(block, sizes)
            return [part.view(dtype).view(shape) for part, (dtype, shape) in zip(cut, shapes)]

        self.tensors = parts(self._device)
        self._parts: list[np.ndarray] = [part.numpy() for part in parts(self._host)]

    def fill(self, contents: Sequence[ArrayLike]) -> None:
        """Write these into the tensors, in order; each must fit its shape or be repeated to it."""
        if self._fetched is not None:
            self._fetched.synchronize()  # the device may still be reading the old contents
        for part, content in zip(self._parts, contents, strict=True):
            part[...] = content
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=self._fetched is not None)
        if self._fetched is not None:
            self._fetched.record()
