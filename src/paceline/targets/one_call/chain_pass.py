"""Passes that generate one token after the other, with little overhead beyond the call itself.

An output head that scores only some tokens is not scattered over the whole vocabulary here, and
consecutive passes reuse the same descriptors.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.chains import ChainFound, ChainRequest
from paceline.kernels.chain_ends import NativeEnd
from paceline.kernels.native import signatures as native
from paceline.kernels.programs.program import CacheLayer, Program
from paceline.kernels.programs.steps import Lowered, Op
from paceline.scores import TokenScores
from paceline.targets.text_slots import TextSlot

__all__ = ["ChainPass"]

_FEW = 64  # numbers


class ChainPass:
    """Scores the next token of one text at a time. lowered: the model. windows: of its kinds of
    layers, see `Windows`."""

    def __init__(self, lowered: Lowered, windows: Sequence[int | None]) -> None:
        self._tokens: NDArray[np.int64] | None = None
        last = lowered.steps[-1]
        if last.op == Op.SCATTER and last.order is not None:
            said = last.of[0]
            if said.whole and said.value is not None:
                self._tokens = last.order.numpy().astype(np.int64) - 1
                lowered = Lowered(lowered.steps[:-1], said.value, lowered.tables)
        self._program = Program(lowered)
        self._windows = (ctypes.c_int64 * len(windows))(*(window or 0 for window in windows))
        self._scores = np.empty(self._program.vocabulary, dtype=np.float32)
        self._one = native.Pass(logits=self._scores.ctypes.data, kept=1)
        self._chain = native.Chain(
            kinds=len(windows),
            windows=ctypes.addressof(self._windows),
            ids=None if self._tokens is None else self._tokens.ctypes.data,
        )
        self._end = NativeEnd()
        self._make_room(_FEW)

    def use_cache(self, layers: Sequence[CacheLayer], kind: int) -> None:
        """See `Program.use_cache`."""
        self._program.use_cache(layers, kind)

    def run(self, text: TextSlot, states: torch.Tensor | None) -> TokenScores:
        """Run one pass over a text's pending tokens. Returns the scores of the token after them, a
        view that the next pass overwrites. states: where the last hidden states go, if anywhere."""
        self._chain.most = 0
        self._play(text, states, 1)
        return TokenScores(self._scores, self._tokens)

    def run_on(
        self, text: TextSlot, states: torch.Tensor | None, wanted: ChainRequest
    ) -> ChainFound:
        """Like `run`, then passes over the likeliest token of the previous one, in one call."""
        chain, known = self._chain, wanted.known
        if self._tokens is not None and known <= self._tokens[-1]:
            known = bisect_left(self._tokens, known)
        chain.numbers = known = min(known, len(self._scores))
        chain.most = most = min(wanted.most, known)
        if wanted.passes * most > len(self._found):
            self._make_room(wanted.passes * most)
        chain.end = None if wanted.end is None else self._end.address(wanted.end)
        self._play(text, states, wanted.passes)
        passes = chain.made
        tokens, shares = self._found[: passes * most], self._shares[: passes * most]
        ends = range(most, passes * most + 1, most)
        ranked = [[*zip(tokens[end - most : end], shares[end - most : end])] for end in ends]
        return ChainFound(ranked, self._seconds[:passes])

    def _play(self, text: TextSlot, states: torch.Tensor | None, passes: int) -> None:
        rows, cached, one, chain = len(text.pending), len(text.cached), self._one, self._chain
        if rows + passes > len(self._reads):
            self._make_room(rows + passes)
        self._reads[:rows] = text.pending
        chain.start, chain.cached, chain.count = text.start, cached, passes
        one.rows, one.states = rows, None
        if states is not None:
            one.states, one.states_stride = states.data_ptr(), states.stride(0)
        self._program.play_chain(one, chain, cached + rows + passes - 1)

    def _make_room(self, numbers: int) -> None:
        self._reads = (ctypes.c_int64 * (2 * numbers))()
        self._found = (ctypes.c_int64 * (2 * numbers))()
        self._shares = (ctypes.c_float * (2 * numbers))()
        self._seconds = (ctypes.c_double * (2 * numbers))()
        chain = self._chain
        chain.reads, chain.tokens = ctypes.addressof(self._reads), ctypes.addressof(self._found)
        chain.shares = ctypes.addressof(self._shares)
        chain.seconds = ctypes.addressof(self._seconds)
