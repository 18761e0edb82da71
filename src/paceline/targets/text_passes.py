"""Passes over texts: lay them out, and split the logits by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from paceline.targets.layout import STATIC_WIDTHS, PassLayout, TextRows, padded_width, static_slots
from paceline.targets.model_pass import ModelPass
from paceline.targets.static_pass import StaticPasses
from paceline.targets.text_slots import TextSlots
from paceline.tree import EMPTY, Tree

__all__ = ["TextPasses"]

# Most pending tokens per text of a pass with a static shape: the root, and the lag of a draft
# model, which is a target of its own. Passes that read a prompt seldom repeat a shape.
_FEW_PENDING = 4


class TextPasses:
    """Runs passes over some texts of a target. forward: runs each pass. static: capture passes that
    recur in few shapes."""

    def __init__(self, forward: ModelPass, static: bool) -> None:
        self._forward = forward
        self.static = static
        self._static: StaticPasses | None = None
        self.renew()

    def renew(self) -> None:
        """Discard all captures: the cache or the table of tokens was replaced."""
        forward = self._forward
        self._static = StaticPasses(forward.run_static, forward.device) if self.static else None

    def as_json(self) -> dict[str, Any]:
        """Report on static shapes."""
        return {"static": self.static, **(self._static.as_json() if self._static else {})}

    def play(
        self, texts: TextSlots, trees: Mapping[int, Tree], pieces: Mapping[int, int]
    ) -> dict[int, torch.Tensor]:
        """Run one pass: read the pieces into the cache, and return the logits of every tree."""
        read = {slot: texts[slot].pending for slot in trees}
        read |= {slot: texts[slot].pending[:size] for slot, size in pieces.items()}
        needed = sum(map(len, read.values())) + sum(map(len, trees.values()))
        static = self._static if self._recurs(read, needed) else None
        width = padded_width(needed, self._forward.min_rows, static=static is not None)
        layout = _lay_out(texts, read, trees, width - needed)
        if static is not None:
            slots = static_slots(sum(text.used for text in layout.texts))
            logits = static.run(layout, slots, self._forward.reserve(layout))
            # Copied: the next pass overwrites them, and observers of this round may keep them.
            wanted = [logits[rows.start : rows.stop] for rows in layout.scored]
            logits = torch.cat([logits[:0], *wanted])
        else:
            logits = self._forward.run(layout, texts.slots)
        for slot, size in pieces.items():
            texts[slot].have_read(size)
        ends = accumulate(1 + len(tree) for tree in trees.values())
        return {slot: logits[end - 1 - len(trees[slot]) : end] for slot, end in zip(trees, ends)}

    def _recurs(self, read: Mapping[int, Sequence[int]], rows: int) -> bool:
        """Whether the next pass, of `rows` rows, gets a static shape. read: tokens by slot."""
        if self._static is None or self._static.failed is not None or rows > STATIC_WIDTHS[-1]:
            return False
        return max(map(len, read.values())) <= _FEW_PENDING


def _lay_out(
    texts: TextSlots, read: Mapping[int, Sequence[int]], trees: Mapping[int, Tree], padding: int
) -> PassLayout:
    """Lay out the rows of a pass, and make room for them in the cache: of each slot the tokens to
    read, then its tree, if any; after the last slot so many rows of padding."""
    rows = {slot: len(tokens) + len(trees.get(slot, EMPTY)) for slot, tokens in read.items()}
    rows[next(reversed(rows))] += padding
    texts.make_room(rows)
    laid = []
    for slot, tokens in read.items():
        text = texts[slot]
        text.tree_at = text.start + len(text.cached) + len(tokens)
        tree = trees.get(slot, EMPTY)
        laid.append(TextRows(text.start, len(text.cached), tokens, tree, slot in trees))
    layout = PassLayout(laid)
    return layout.padded(layout.rows + padding) if padding else layout
