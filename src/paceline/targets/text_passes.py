"""Passes over texts: lay them out, and split the logits by text."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from paceline.kernels import cuda_graph
from paceline.kernels.cuda_graph import Repeated, on_device
from paceline.targets.layout import STATIC_WIDTHS, PassLayout, TextRows, padded_width, static_slots
from paceline.targets.model_pass import ModelPass
from paceline.targets.pass_inputs import InputsInOne
from paceline.targets.text_slots import TextSlots
from paceline.tree import EMPTY, Tree

# Most pending tokens per text of a pass with a static shape: the root, and the lag of a draft
# model, which is a target of its own. Passes that read a prompt seldom repeat a shape.
_FEW_PENDING = 4

_Shape = tuple[int, int]


def play(
    forward: ModelPass,
    static: StaticPasses | None,
    texts: TextSlots,
    trees: Mapping[int, Tree],
    pieces: Mapping[int, int],
) -> dict[int, torch.Tensor]:
    """Run one pass: read the pieces into the cache, and return the logits of every tree.

    forward: runs the pass. static: captures it instead, if it recurs.
    """
    read = {slot: texts[slot].pending for slot in trees}
    read |= {slot: texts[slot].pending[:size] for slot, size in pieces.items()}
    needed = sum(map(len, read.values())) + sum(map(len, trees.values()))
    if static is not None and not static.takes(read, needed):
        static = None
    width = padded_width(needed, forward.min_rows, static=static is not None)
    layout = _lay_out(texts, read, trees, width - needed)
    logits = (static or forward).run(layout)
    for slot, size in pieces.items():
        texts[slot].have_read(size)
    wanted = [1 + len(tree) for tree in trees.values()]
    if wanted == [logits.shape[0]]:  # slicing a tensor takes long for what it does
        return dict.fromkeys(trees, logits)
    ends = accumulate(wanted)
    return {slot: logits[end - rows : end] for slot, rows, end in zip(trees, wanted, ends)}


class StaticPasses:
    """Passes with static shapes, one per (rows, slots), captured on a CUDA device, see `Repeated`.

    A GPU runs a small model's pass faster than Python can launch its thousand kernels. A CUDA graph
    launches all of them at once, but it records one particular pass: its shapes, addresses and
    every number known to Python are fixed. So there are few shapes, and everything that changes
    from pass to pass is read from `InputsInOne` on the device.

    failed: why a capture failed; then all passes are to run the ordinary way.
    """

    def __init__(self, forward: ModelPass) -> None:
        self._forward, self._device = forward, forward.device
        self._recorder = cuda_graph.recorder_for(self._device)
        self._memory: Hashable = None
        self._passes: dict[_Shape, tuple[InputsInOne, Repeated]] = {}
        self._shapes: set[_Shape] = set()
        self._captured = 0
        self.failed: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Report how many shapes came, how many captures were made (a shape is captured again
        after the cache moves), and why one failed."""
        return {"shapes": len(self._shapes), "captured": self._captured, "failed": self.failed}

    def takes(self, read: Mapping[int, Sequence[int]], rows: int) -> bool:
        """Whether a pass of `rows` rows gets a static shape. read: tokens by slot."""
        if self.failed is not None or rows > STATIC_WIDTHS[-1]:
            return False
        return max(map(len, read.values())) <= _FEW_PENDING

    def run(self, layout: PassLayout) -> torch.Tensor:
        """Run one pass and return the logits [rows, vocabulary] of the scored texts."""
        shape = layout.rows, static_slots(sum(text.used for text in layout.texts))
        memory = self._forward.reserve(layout)
        with on_device(self._device):
            if memory != self._memory:  # captured passes use the old addresses
                self._passes, self._memory = {}, memory
                if self._recorder is not None:
                    self._recorder.renew()
            self._shapes.add(shape)
            inputs, repeated = self._passes.get(shape) or self._made(shape)
            inputs.fill(layout, static=True)
            recorded, logits = repeated.recorded, repeated()
            # Kept only now: an interrupted pass may have moved half of the cache.
            self._passes[shape] = inputs, repeated
            self._captured += repeated.recorded - recorded
            if repeated.failed:
                self.failed = repeated.failed
                self._passes.clear()
            # Copied: the next pass overwrites them, and observers of this round may keep them.
            wanted = [logits[rows.start : rows.stop] for rows in layout.scored]
            return torch.cat([logits[:0], *wanted])

    def _made(self, shape: _Shape) -> tuple[InputsInOne, Repeated]:
        """The inputs of a shape, and what runs the model on them."""
        inputs = InputsInOne(*shape, self._device, pinned=True)
        # Not `self`: a circle would keep the graphs' memory for a while.
        forward = self._forward.run_static
        return inputs, Repeated(lambda: forward(inputs), self._recorder)


def _lay_out(
    texts: TextSlots, read: Mapping[int, Sequence[int]], trees: Mapping[int, Tree], padding: int
) -> PassLayout:
    """Lay out the rows of a pass, and make room for them in the cache: of each slot the tokens to
    read, then its tree, if any; after the last slot so many rows of padding."""
    rows = {slot: len(tokens) + len(trees.get(slot, EMPTY)) for slot, tokens in read.items()}
    last = next(reversed(rows))
    rows[last] += padding
    texts.make_room(rows)
    laid = []
    for slot, tokens in read.items():
        text = texts[slot]
        text.tree_at = text.start + len(text.cached) + len(tokens)
        tree = trees.get(slot, EMPTY)
        unused = padding if slot == last else 0
        laid.append(TextRows(text.start, len(text.cached), tokens, tree, slot in trees, unused))
    return PassLayout(laid)
