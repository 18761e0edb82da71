"""What one target pass reads, on the model's device.

Two ways to let every row attend to its own text alone. By text: an attention function of ours is
told which slots of the cache each row sees (on a CPU, see `paceline.kernels.slots_seen`).
In one: any attention function gets the slots of all texts as if they were one, with a mask that
hides the others' (on a GPU, and for models that take no attention function of ours).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from paceline.kernels.attention import RowsSeen
from paceline.kernels.slots_seen import SlotsSeen
from paceline.targets.kv_cache import View
from paceline.targets.layout import PassLayout

__all__ = ["InputsByText", "InputsInOne", "Masks", "PassInputs", "Windows"]

Masks = torch.Tensor | dict[str, torch.Tensor]
"""A float mask of four dimensions; one per kind of layer where kinds differ."""

Windows = Mapping[str, int | None]
"""Kind of layer -> how many positions back it sees, its own included; None for all."""

_BYTES = 8  # of an int64


class PassInputs(Protocol):
    """Inputs of a pass."""

    @property
    def tokens(self) -> torch.Tensor:
        """[1, rows] int64."""
        ...

    @property
    def positions(self) -> torch.Tensor:
        """[1, rows] int64."""
        ...

    @property
    def where(self) -> int | torch.Tensor:
        """The slots that rows are written to, see `TreeCache.direct`."""
        ...

    @property
    def view(self) -> View:
        """What of the pool is attended to."""
        ...

    def masks(self, windows: Windows, dtype: torch.dtype) -> tuple[Masks, RowsSeen | None]:
        """What each row may attend to; for attention of ours besides as slots. Float, because eager
        attention adds the mask, and a boolean one would be added silently."""
        ...


@dataclass(frozen=True)
class InputsByText:
    """Inputs of a pass whose rows say which slots they see; on a CPU.

    pool: slots of the whole cache.
    """

    layout: PassLayout
    pool: int

    @cached_property
    def tokens(self) -> torch.Tensor:
        """[1, rows]."""
        return torch.from_numpy(self.layout.tokens())[None]

    @cached_property
    def positions(self) -> torch.Tensor:
        """[1, rows]."""
        return torch.from_numpy(self.layout.positions())[None]

    @property
    def where(self) -> int | torch.Tensor:
        """One number where the rows go to neighbouring slots, as those of one text do."""
        places = self.layout.places()
        return int(places[0]) if len(self.layout.texts) == 1 else torch.from_numpy(places)

    @property
    def view(self) -> View:
        """All of the pool."""
        return 0, self.pool

    def masks(self, windows: Windows, dtype: torch.dtype) -> tuple[Masks, RowsSeen]:
        """Masks of one number, which only stand for what they say."""
        kinds = {kind: torch.zeros(1, 1, 1, 1, dtype=dtype) for kind in windows}
        seen = {
            kinds[kind].data_ptr(): SlotsSeen(*self.layout.stretches(window))
            for kind, window in windows.items()
        }
        return _one_or_all(kinds), seen


class InputsInOne:
    """Inputs of a pass with `rows` rows that attends to `slots` slots of the pool, those of its
    texts first.

    columns: [slots] int64, which ones. seen: [rows, slots] bool, which row sees which. held:
    [slots] int64, the positions that they hold.

    The tensors keep their place for good: `fill` writes new contents into them. With `pinned` a
    GPU fetches these without the host waiting, so inputs that are used again should be.
    """

    def __init__(
        self, rows: int, slots: int, device: torch.device, *, pinned: bool = False
    ) -> None:
        size = (3 * rows + 2 * slots) * _BYTES + rows * slots
        pinned = pinned and device.type == "cuda"
        self._host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._device = self._host if device.type == "cpu" else self._host.to(device)
        self._fetched = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        self._parts = [part.numpy() for part in _parts(self._host, rows, slots)]
        tokens, positions, self.where, self.columns, self.held, self.seen = _parts(
            self._device, rows, slots
        )
        self.tokens, self.positions = tokens[None], positions[None]
        self._stretch: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and slots."""
        rows, slots = self.seen.shape
        return rows, slots

    @property
    def view(self) -> View:
        """The slots attended to: of a single text its stretch, as it lies."""
        return self.columns if self._stretch is None else self._stretch

    def fill(self, layout: PassLayout, *, static: bool = False) -> InputsInOne:
        """Take over the contents of `layout`, which has as many rows and uses no more slots.

        static: the pass will be replayed, so nothing may depend on where texts lie.
        """
        if self._fetched is not None:
            self._fetched.synchronize()  # the device may still be reading the contents before
        rows, slots = self.shape
        contents = (
            layout.tokens(),
            layout.positions(),
            layout.places(),
            *_columns(layout, rows, slots),
        )
        for part, content in zip(self._parts, contents, strict=True):
            part[...] = content
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=self._fetched is not None)
        if self._fetched is not None:
            self._fetched.record()
        alone = layout.texts[0].start if len(layout.texts) == 1 and not static else None
        self._stretch = None if alone is None else (alone, alone + slots)
        return self

    def masks(self, windows: Windows, dtype: torch.dtype) -> tuple[Masks, None]:
        """[1, 1, rows, slots]."""
        lowest = torch.finfo(dtype).min
        masks = {}
        for kind, window in windows.items():
            hidden = ~self.seen
            if window is not None:
                hidden |= self.held <= self.positions[0][:, None] - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            masks[kind] = mask.masked_fill_(hidden, lowest)[None, None]
        return _one_or_all(masks), None


def _one_or_all(masks: dict[str, torch.Tensor]) -> Masks:
    """Models whose layers are all of one kind take the mask itself."""
    return masks if len(masks) > 1 else masks.popitem()[1]


def _columns(layout: PassLayout, rows: int, slots: int) -> tuple[np.ndarray, ...]:
    """Which slots of the pool are attended to, the positions that they hold, and which row sees
    which: the texts' stretches one after the other, as far as they are in use."""
    columns = np.full(slots, layout.texts[0].start, dtype=np.int64)
    held = np.zeros(slots, dtype=np.int64)
    seen = np.zeros((rows, slots), dtype=np.bool_)
    begin = 0
    for text, first in zip(layout.texts, layout.firsts, strict=True):
        end = begin + text.used
        columns[begin:end] = text.start + np.arange(text.used)
        held[begin:end] = text.slot_positions(text.used)
        seen[first : first + len(text), begin:end] = text.visible(text.used)
        begin = end
    return columns, held, seen


def _parts(block: torch.Tensor, rows: int, slots: int) -> Sequence[torch.Tensor]:
    """Views of tokens, positions, where, columns, held and seen in one block of bytes."""
    numbers = block[: (3 * rows + 2 * slots) * _BYTES].view(torch.int64)
    seen = block[(3 * rows + 2 * slots) * _BYTES :].view(torch.bool).view(rows, slots)
    lengths = [rows, rows, rows, slots, slots]
    return [*torch.split(numbers, lengths), seen]
