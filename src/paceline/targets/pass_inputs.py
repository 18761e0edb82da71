"""What one target pass reads, on the model's device: one block of memory, sent over in one go.

Everything that grows with the cache, the masks above all, is made of it on the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline.targets.layout import PassLayout

__all__ = ["Masks", "PassInputs"]

Masks = torch.Tensor | dict[str, torch.Tensor]
"""A float mask [batch, 1, width, slots]; one per kind of layer where kinds differ."""

_BYTES = 8  # of an int64


class PassInputs:
    """Inputs of a pass over `batch` texts with `width` rows each.

    tokens, positions, slots: [batch, width] int64, as in `PassLayout`.
    cached: [batch] int64, slots in the cache before the pass.
    among: [batch, width, width] bool, which rows of the pass see which.
    texts: [batch, 1] int64, the numbers of the texts; with `slots` an index into the cache.

    The tensors keep their place for good: `fill` writes new contents into them. With `pinned` a
    GPU fetches these without the host waiting, so inputs that are used again should be.
    """

    def __init__(
        self, batch: int, width: int, device: torch.device, *, pinned: bool = False
    ) -> None:
        numbers = (3 * batch * width + batch) * _BYTES
        size = numbers + batch * width * width
        pinned = pinned and device.type == "cuda"
        self._host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._device = self._host if device.type == "cpu" else self._host.to(device)
        self._fetched = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        self._parts = [part.numpy() for part in _parts(self._host, batch, width)]
        self.tokens, self.positions, self.slots, self.cached, self.among = _parts(
            self._device, batch, width
        )
        self.texts = torch.arange(batch, device=device)[:, None]

    def fill(self, layout: PassLayout) -> PassInputs:
        """Take over the contents of `layout`, which has the same batch and width."""
        if self._fetched is not None:
            self._fetched.synchronize()  # the device may still be reading the contents before
        contents = (
            layout.tokens(),
            layout.positions(),
            layout.slots(),
            layout.cached,
            layout.among(),
        )
        for part, content in zip(self._parts, contents, strict=True):
            part[...] = content
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=self._fetched is not None)
        if self._fetched is not None:
            self._fetched.record()
        return self

    def masks(self, slots: int, windows: Mapping[str, int | None], dtype: torch.dtype) -> Masks:
        """What each row may attend to, of the cache's first `slots` slots.

        windows: kind of layer -> how many positions back it sees, its own included; None for all.

        Float, because eager attention adds the mask, and a boolean one would be added silently.
        """
        everything = self._everything(slots, dtype)
        lowest = torch.finfo(dtype).min
        masks = {
            kind: everything
            if window is None
            else everything.masked_fill(self._beyond(slots, window), lowest)
            for kind, window in windows.items()
        }
        if len(masks) > 1:
            return {kind: mask[:, None] for kind, mask in masks.items()}
        return masks.popitem()[1][:, None]

    def _everything(self, slots: int, dtype: torch.dtype) -> torch.Tensor:
        """[batch, width, slots]: 0 for what is in the cache, and what of the pass is seen."""
        lowest, width = torch.finfo(dtype).min, self.among.shape[1]
        places = torch.arange(slots, device=self.cached.device)
        free = places >= self.cached[:, None]
        # One line for the cache, which all rows see alike; only the pass itself takes a square.
        line = torch.zeros(free.shape, dtype=dtype, device=free.device).masked_fill_(free, lowest)
        square = torch.zeros(self.among.shape, dtype=dtype, device=free.device)
        square.masked_fill_(~self.among, lowest)
        lines = line[:, None].repeat(1, width, 1)
        return lines.scatter_(2, self.slots[:, None].expand(-1, width, -1), square)

    def _beyond(self, slots: int, window: int) -> torch.Tensor:
        """[batch, width, slots]: whether a slot's position is too far back for the row's."""
        places = torch.arange(slots, device=self.cached.device)
        # A slot holds the position of its number, but for those of the tree.
        positions = places.repeat(len(self.cached), 1).scatter_(1, self.slots, self.positions)
        return positions[:, None] <= self.positions[:, :, None] - window


def _parts(block: torch.Tensor, batch: int, width: int) -> tuple[torch.Tensor, ...]:
    """Views of tokens, positions, slots, cached and among in one block of bytes."""
    rows = batch * width
    numbers = block[: (3 * rows + batch) * _BYTES].view(torch.int64)
    tables = numbers[: 3 * rows].view(3, batch, width)
    among = block[(3 * rows + batch) * _BYTES :].view(torch.bool).view(batch, width, width)
    return (*tables.unbind(), numbers[3 * rows :], among)
