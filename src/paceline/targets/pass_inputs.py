"""The inputs of one target pass, on the model's device.

There are two ways to let every row attend to its own text alone. By text: paceline's attention
function is told which cache slots each row sees (on a CPU, see `paceline.kernels.slots_seen`).
In one: any attention function gets the slots of all texts as if they were one, and a mask hides
the others' (on a GPU, and for models that do not take paceline's function).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from paceline.kernels.attention import RowsSeen
from paceline.kernels.fixed_inputs import FixedInputs
from paceline.kernels.slots_seen import SlotsSeen
from paceline.targets.kv_cache import View
from paceline.targets.layout import PassLayout

Masks = torch.Tensor | dict[str, torch.Tensor]
"""A 4-D mask; one per kind of layer if kinds differ. Float, because eager attention adds the mask,
and would silently add a boolean one."""

Windows = Mapping[str, int | None]
"""Kind of layer -> how many positions it sees, its own included; None for all."""


class InputsByText:
    """Inputs of a pass, on a CPU, that name the slots each row sees.

    pool: slots of the whole cache, all of them in `view`. tokens, positions: [1, rows]. where: the
    slots written to; the first if they are consecutive, as those of one text are.
    """

    def __init__(self, layout: PassLayout, pool: int) -> None:
        self._layout = layout
        self.tokens = torch.from_numpy(layout.tokens())[None]
        self.positions = torch.from_numpy(layout.positions())[None]
        places = layout.places()
        alone = len(layout.texts) == 1
        self.where: int | torch.Tensor = int(places[0]) if alone else torch.from_numpy(places)
        self.view: View = 0, pool

    def masks(self, windows: Windows, dtype: torch.dtype) -> tuple[Masks, RowsSeen]:
        """Masks of one number, whose addresses are the keys to the slots."""
        kinds = {kind: torch.zeros(1, 1, 1, 1, dtype=dtype, device="cpu") for kind in windows}
        seen = {
            kinds[kind].data_ptr(): SlotsSeen(*self._layout.stretches(window))
            for kind, window in windows.items()
        }
        return _one_or_all(kinds), seen


class InputsInOne:
    """Inputs of a pass with `rows` rows that attends to `slots` slots of the pool, those of its
    texts first.

    columns: [slots] int64, which slots. seen: [rows, slots] bool, which row sees which. held:
    [slots] int64, the positions they hold.

    pinned: see `FixedInputs`.
    """

    def __init__(
        self, rows: int, slots: int, device: torch.device, *, pinned: bool = False
    ) -> None:
        numbers = [(rows,)] * 3 + [(slots,)] * 2
        self._inputs = FixedInputs(numbers, [(rows, slots)], device, pinned=pinned)
        tokens, positions, self.where, self.columns, self.held, self.seen = self._inputs.tensors
        self.tokens, self.positions = tokens[None], positions[None]
        self.shape = rows, slots
        self.view: View = self.columns

    def fill(self, layout: PassLayout, *, static: bool = False) -> InputsInOne:
        """Write the contents of `layout`, which has as many rows and uses no more slots. static:
        the pass will be replayed, so nothing may depend on where texts lie."""
        rows, slots = self.shape
        given = layout.tokens(), layout.positions(), layout.places()
        self._inputs.fill([*given, *_columns(layout, rows, slots)])
        start, alone = layout.texts[0].start, len(layout.texts) == 1 and not static
        self.view = (start, start + slots) if alone else self.columns
        return self

    def masks(self, windows: Windows, dtype: torch.dtype) -> tuple[Masks, None]:
        """Masks [1, 1, rows, slots]."""
        lowest = torch.finfo(dtype).min
        masks = {}
        for kind, window in windows.items():
            hidden = ~self.seen
            if window is not None:
                hidden |= self.held <= self.positions[0][:, None] - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            masks[kind] = mask.masked_fill_(hidden, lowest)[None, None]
        return _one_or_all(masks), None


PassInputs = InputsByText | InputsInOne


def _one_or_all(masks: dict[str, torch.Tensor]) -> Masks:
    """Unwrap a single mask: models with one kind of layer take it directly."""
    return masks if len(masks) > 1 else masks.popitem()[1]


def _columns(layout: PassLayout, rows: int, slots: int) -> tuple[np.ndarray, ...]:
    """The slots attended to, the positions they hold, and which row sees which: the used parts of
    the texts' stretches, one after the other."""
    columns = np.full(slots, layout.texts[0].start, dtype=np.int64)
    held = np.zeros(slots, dtype=np.int64)
    seen = np.zeros((rows, slots), dtype=np.bool_)
    begin = 0
    for text, first in zip(layout.texts, layout.firsts, strict=True):
        end, numbers = begin + text.used, np.arange(text.used)
        columns[begin:end] = text.start + numbers
        held[begin:end] = numbers  # slot i holds position i, except in the tree
        held[begin + text.cached : end] = text.positions
        seen[first : first + len(text), begin:end] = text.visible(text.used)
        begin = end
    return columns, held, seen
