"""Passes that say one token after the other: little is done besides the call itself.

An output head that scores some tokens only is not spread over the whole vocabulary here, and what
describes a pass stays where it is from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.kernels.native import signatures as native
from paceline.kernels.programs.buffers import PassBuffers
from paceline.kernels.programs.program import CacheLayer, Program
from paceline.kernels.programs.steps import Lowered, Op
from paceline.scores import TokenScores

__all__ = ["ChainPass"]

_FEW = 8  # rows


class ChainPass:
    """Scores the token behind the text, of one text at a time.

    lowered: the model. windows: of its kinds of layers, see `Windows`.
    """

    def __init__(self, lowered: Lowered, windows: Sequence[int | None]) -> None:
        self._tokens: NDArray[np.int64] | None = None
        last = lowered.steps[-1]
        if last.op == Op.SCATTER and last.order is not None:
            said = last.of[0]
            if said.whole and said.value is not None:
                self._tokens = last.order.numpy().astype(np.int64) - 1
                lowered = Lowered(lowered.steps[:-1], said.value, lowered.tables)
        self._program = Program(lowered)
        self._windows = windows
        self._scores = np.empty(self._program.vocabulary, dtype=np.float32)
        self._rows = PassBuffers(_FEW, len(windows))

    def use_cache(self, layers: Sequence[CacheLayer], kind: int) -> None:
        """See `Program.use_cache`."""
        self._program.use_cache(layers, kind)

    def run(
        self, start: int, cached: int, pending: Sequence[int], states: torch.Tensor | None
    ) -> TokenScores:
        """See `CompiledPass.follow`. states: where the last hidden states go; None for nowhere."""
        count = len(pending)
        if count > self._rows.capacity:
            self._rows = PassBuffers(2 * count, len(self._windows))
        one = self._fill(start, cached, pending)
        one.logits = self._scores.ctypes.data
        if states is None:
            one.states = None
        else:
            one.states, one.states_stride = states.data_ptr(), states.stride(0)
        self._program.play(one, cached + count)
        return TokenScores(self._scores, self._tokens)

    def _fill(self, start: int, cached: int, pending: Sequence[int]) -> native.Pass:
        rows = self._rows
        # One by one: they are few, as a rule, and numpy takes longer to begin.
        for row, token in enumerate(pending):
            position = cached + row
            rows.tokens[row], rows.positions[row] = token, position
            rows.slots[row] = start + position
            for first, length, window in zip(rows.first, rows.count, self._windows, strict=True):
                lowest = 0 if window is None else max(0, position - window + 1)
                first[row], length[row] = start + lowest, position + 1 - lowest
        rows.native.rows, rows.native.kept = len(pending), 1
        rows.keep[0] = len(pending) - 1
        return rows.native
