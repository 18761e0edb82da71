"""Passes over texts: lay them out, and split the logits by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from paceline.targets.layout import (
    STATIC_WIDTHS,
    PassLayout,
    TextRows,
    padded_width,
    static_slots,
)
from paceline.targets.model_pass import ModelPass
from paceline.targets.static_pass import StaticPasses
from paceline.targets.text_slots import TextSlots
from paceline.tree import EMPTY, Tree

__all__ = ["TextPasses"]

# Most pending tokens per text of a pass with a static shape: the root, and the lag of a draft
# model, which is a target of its own. Passes that read a prompt seldom repeat a shape.
_FEW_PENDING = 4


@dataclass(frozen=True)
class _Job:
    """A pass's work for one text: read these tokens and, if there is a tree, score it below the
    last one."""

    slot: int
    pending: Sequence[int] = field(repr=False)
    tree: Tree | None = None

    @property
    def rows(self) -> int:
        """Rows of the pass, without padding."""
        return len(self.pending) + (0 if self.tree is None else len(self.tree))

    @property
    def logits(self) -> int:
        """Rows whose logits are wanted."""
        return 0 if self.tree is None else 1 + len(self.tree)


class TextPasses:
    """Runs passes over some texts of a target.

    forward: runs each pass. static: capture passes that recur in few shapes.
    """

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
        jobs = [_Job(slot, texts[slot].pending, tree) for slot, tree in trees.items()]
        jobs += [_Job(slot, texts[slot].pending[:size]) for slot, size in pieces.items()]
        needed = sum(job.rows for job in jobs)
        static = self._static if self._recurs(jobs, needed) else None
        width = padded_width(needed, self._forward.min_rows, static=static is not None)
        layout = _lay_out(texts, jobs, width)
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
        scored = [job for job in jobs if job.tree is not None]
        ends = accumulate(job.logits for job in scored)
        return {job.slot: logits[end - job.logits : end] for job, end in zip(scored, ends)}

    def _recurs(self, jobs: Sequence[_Job], rows: int) -> bool:
        """Whether the next pass, of `rows` rows, gets a static shape."""
        if self._static is None or not self._static.usable or rows > STATIC_WIDTHS[-1]:
            return False
        return max(len(job.pending) for job in jobs) <= _FEW_PENDING


def _lay_out(texts: TextSlots, jobs: Sequence[_Job], width: int) -> PassLayout:
    """Lay out the rows of a pass, and make room for them in the cache."""
    padding = max(0, width - sum(job.rows for job in jobs))
    rows = {job.slot: job.rows for job in jobs}
    texts.make_room({**rows, jobs[-1].slot: jobs[-1].rows + padding})
    laid = []
    for job in jobs:
        text = texts[job.slot]
        text.tree_at = text.start + len(text.cached) + len(job.pending)
        where = text.start, len(text.cached)
        laid.append(TextRows(*where, job.pending, job.tree or EMPTY, job.tree is not None))
    return PassLayout(laid).padded(width) if padding else PassLayout(laid)
