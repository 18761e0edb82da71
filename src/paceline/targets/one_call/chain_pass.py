"""Passes that say one token after the other: little is done besides the call itself.

An output head that scores some tokens only is not spread over the whole vocabulary here, and what
describes a pass stays where it is from one to the next.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.kernels.native import signatures as native
from paceline.kernels.programs.program import CacheLayer, Program
from paceline.kernels.programs.steps import Lowered, Op
from paceline.records import TokenScores

__all__ = ["ChainPass"]


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
        self._rows = _Rows(1, len(windows))

    def use_cache(self, layers: Sequence[CacheLayer]) -> None:
        """Where keys and values are from now on."""
        self._program.use_cache(layers)

    def run(
        self, start: int, cached: int, pending: Sequence[int], states: torch.Tensor | None
    ) -> TokenScores:
        """See `CompiledPass.follow`. states: where the last hidden states go; None for nowhere."""
        count = len(pending)
        if count > self._rows.capacity:
            self._rows = _Rows(2 * count, len(self._windows))
        one = self._rows.fill(start, cached, pending, self._windows)
        one.logits = self._scores.ctypes.data
        if states is None:
            one.states = None
        else:
            one.states, one.states_stride = states.data_ptr(), states.stride(0)
        self._program.play(one, cached + count)
        return TokenScores(self._scores, self._tokens)


class _Rows:
    """What describes passes of up to `capacity` rows that follow each other in a text; windows: how
    many kinds of layers there are."""

    def __init__(self, capacity: int, windows: int) -> None:
        self.capacity = capacity
        self._tokens, self._positions, self._slots = np.zeros((3, capacity), dtype=np.int64)
        self._keep = np.zeros(1, dtype=np.int64)
        self._seen = np.zeros((windows, 2, capacity), dtype=np.int32)
        self._no_others = np.zeros(capacity + 1, dtype=np.int32)
        others = self._no_others.ctypes.data
        self._native_seen = (native.Seen * windows)(
            *(
                native.Seen(*(each.ctypes.data for each in pair), others, others)
                for pair in self._seen
            )
        )
        self._pass = native.Pass(
            kept=1,
            tokens=self._tokens.ctypes.data,
            positions=self._positions.ctypes.data,
            where=self._slots.ctypes.data,
            keep=self._keep.ctypes.data,
            seen=ctypes.addressof(self._native_seen),
        )

    def fill(
        self, start: int, cached: int, pending: Sequence[int], windows: Sequence[int | None]
    ) -> native.Pass:
        """The pass over these tokens behind so many that are cached, from slot `start` on."""
        # One by one: they are few, as a rule, and numpy takes longer to begin.
        for row, token in enumerate(pending):
            position = cached + row
            self._tokens[row], self._positions[row] = token, position
            self._slots[row] = start + position
            for (first, length), window in zip(self._seen, windows):
                lowest = 0 if window is None else max(0, position - window + 1)
                first[row], length[row] = start + lowest, position + 1 - lowest
        self._pass.rows = count = len(pending)
        self._keep[0] = count - 1
        return self._pass
