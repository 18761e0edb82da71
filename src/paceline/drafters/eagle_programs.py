"""EAGLE's rows and its head as programs of the C library."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafters.attention_rows import EPSILON
from paceline.drafters.eagle_calls import EagleCall
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.programs.builder import Builder, Columns, GivenRows, Rotary, layer_of, merged
from paceline.kernels.programs.steps import Join, Operand

if TYPE_CHECKING:
    from paceline.drafters.eagle_model import EagleModel

__all__ = ["AT_ONCE", "EaglePrograms", "Floats"]

Floats = NDArray[np.float32]

AT_ONCE = 512
"""Rows; memory for so many is kept."""


class EaglePrograms:
    """The parts of `model` as programs, with layers of this kind.

    read: features and the embeddings after them side by side -> outputs, and columns in the cache.
    grow: the same of guesses: outputs of the rows before in the place of features. head: outputs ->
    logits. rotary: of the first two. call: all of them in one call; None where that cannot be had.

    Raises UnpackableError for a kind that cannot be had here.
    """

    def __init__(self, model: EagleModel, kind: type[BlockLinear]) -> None:
        self._model, self._hidden = model, model.hidden_size
        config = model.config
        self.rotary = Rotary(config.head_size, config.rotary_base)
        self._to = Columns(0, config.kv_heads, config.head_size)
        self._keys = config.kv_heads * config.head_size
        self._queries = config.attention_heads * config.head_size
        self._fuse = layer_of(kind, [model.fuse.weight]) if config.layers else None
        self._enter = layer_of(kind, [model.enter.weight])
        self._attention = merged(kind, [model.query, model.key, model.value])
        self._join = layer_of(kind, [model.join.weight])
        self._gates = layer_of(kind, [model.gate.weight, model.up.weight])
        self._down = layer_of(kind, [model.down.weight])
        self.read, self.grow = self._built_read(), self._built_grow()
        self.head = self._built_head(model.shared_layer(kind))
        self.call: EagleCall | None = None
        if model.words is not None:
            self.call = EagleCall(self, model.words, model.width, model.token_ids, model.outputs)

    def _built_read(self) -> GivenRows:
        model, hidden = self._model, self._hidden
        build = Builder(model.width + hidden, self.rotary)
        features = build.part(build.given, 0, model.width)
        if self._fuse is not None:
            taps = [
                build.normal(build.part(build.given, place * hidden, hidden), norm, EPSILON)
                for place, norm in enumerate(model.tap_norms)
            ]
            features = build.product(reduce(build.beside, taps), self._fuse)
        words = build.part(build.given, model.width, hidden)
        return self._built_rows(build, features, model.feature_norm, words)

    def _built_grow(self) -> GivenRows:
        build, hidden = Builder(2 * self._hidden, self.rotary), self._hidden
        before, words = (build.part(build.given, at, hidden) for at in (0, hidden))
        return self._built_rows(build, before, self._model.own_norm, words)

    def _built_rows(
        self, build: Builder, before: Operand, norm: torch.Tensor, words: Operand
    ) -> GivenRows:
        model, keys = self._model, self._keys
        words = build.normal(words, model.word_norm, EPSILON)
        both = build.beside(build.normal(before, norm, EPSILON), words)
        rows = build.product(both, self._enter)
        three = build.product(build.normal(rows, model.row_norm, EPSILON), self._attention)
        queries = build.turned(build.part(three, 0, self._queries))
        own = build.turned(build.part(three, self._queries, keys))
        build.store(own, build.part(three, self._queries + keys, keys), self._to)
        attended = build.product(build.attended(queries, self._to), self._join)
        rows = build.map(attended, Join.PLUS, rows)
        inner = build.normal(rows, model.inner_norm, EPSILON)
        return build.program(
            build.map(build.gated(inner, self._gates, self._down), Join.PLUS, rows)
        )

    def _built_head(self, head: BlockLinear) -> GivenRows:
        build = Builder(self._hidden)
        return build.program(
            build.product(build.normal(build.given, self._model.last_norm, EPSILON), head)
        )
