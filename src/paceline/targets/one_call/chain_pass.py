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
from paceline.scores import Ranked, TokenScores

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
        self._found = np.empty(0, dtype=np.int64)
        self._shares = np.empty(0, dtype=np.float32)

    def use_cache(self, layers: Sequence[CacheLayer], kind: int) -> None:
        """See `Program.use_cache`."""
        self._program.use_cache(layers, kind)

    def run(
        self, start: int, cached: int, pending: Sequence[int], states: torch.Tensor | None
    ) -> TokenScores:
        """See `CompiledPass.follow`. states: where the last hidden states go; None for nowhere."""
        one = self._fill(start, cached, pending, states)
        self._program.play(one, cached + len(pending))
        return TokenScores(self._scores, self._tokens)

    def run_on(
        self,
        start: int,
        cached: int,
        pending: Sequence[int],
        states: torch.Tensor | None,
        passes: int,
        most: int,
        known: int,
    ) -> list[Ranked]:
        """See `CompiledPass.go_on`."""
        scores = len(self._scores)
        if self._tokens is not None:
            known = int(np.searchsorted(self._tokens, known))
        known, most = min(known, scores), min(most, known, scores)
        first = self._fill(start, cached, pending, states, passes - 1)
        if self._found.size < passes * most:
            self._found = np.empty(passes * most, dtype=np.int64)
            self._shares = np.empty(passes * most, dtype=np.float32)
        chain = native.Chain(
            count=passes,
            most=most,
            numbers=known,
            kinds=len(self._windows),
            ids=None if self._tokens is None else self._tokens.ctypes.data,
            reads=first.tokens,
            tokens=self._found.ctypes.data,
            shares=self._shares.ctypes.data,
        )
        self._program.play_chain(first, chain, cached + len(pending) + passes - 1)
        end = passes * most
        ranked = [*zip(self._found[:end].tolist(), self._shares[:end].tolist(), strict=True)]
        return [ranked[begin : begin + most] for begin in range(0, end, most)]

    def _fill(
        self,
        start: int,
        cached: int,
        pending: Sequence[int],
        states: torch.Tensor | None,
        more: int = 0,
    ) -> native.Pass:
        """more: rows behind those of `pending`, whose tokens are not known yet."""
        if len(pending) + more > self._rows.capacity:
            self._rows = PassBuffers(2 * (len(pending) + more), len(self._windows))
        rows = self._rows
        # One by one: they are few, as a rule, and numpy takes longer to begin.
        for row, token in enumerate(pending):
            rows.tokens[row] = token
        for row in range(len(pending) + more):
            position = cached + row
            rows.positions[row] = position
            rows.slots[row] = start + position
            for first, length, window in zip(rows.first, rows.count, self._windows, strict=True):
                lowest = 0 if window is None else max(0, position - window + 1)
                first[row], length[row] = start + lowest, position + 1 - lowest
        one = rows.native
        one.rows, one.kept, rows.keep[0] = len(pending), 1, len(pending) - 1
        one.logits = self._scores.ctypes.data
        one.states = None
        if states is not None:
            one.states, one.states_stride = states.data_ptr(), states.stride(0)
        return one
