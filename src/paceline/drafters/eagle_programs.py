"""EAGLE's rows and head as programs of the C library, and a whole draft in one call."""

from __future__ import annotations

from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafters.attention_rows import EPSILON
from paceline.drafters.called_levels import CalledPrograms, LevelCall, runs_here
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.medusa_heads import HeadModule
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, Columns, GivenRows, Rotary, layer_of, merged
from paceline.kernels.programs.steps import Join, Operand
from paceline.planning.draft_length import LONGEST
from paceline.records import WordTable

__all__ = ["AT_ONCE", "EaglePrograms", "Floats", "compile_eagle"]

Floats = NDArray[np.float32]

AT_ONCE = 512
"""Most rows per call; memory for them is kept."""
_MOST_FRESH = 16
"""Most rows of the text in the call of a draft; a prompt is read in calls of its own."""


class EaglePrograms(CalledPrograms):
    """The parts of `model` as programs, with layers of this kind.

    read: features and the embeddings after them side by side -> outputs, and columns in the cache.
    store: the columns alone. grow: as `read` for guesses, with the outputs of the rows before
    instead of features. head: outputs -> logits. rotary: of all but the head. call: a draft by
    `read`, `grow` and `head` in one call; None if unavailable.

    Raises UnpackableError for a kind that is unavailable here.
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
        self._columns = merged(kind, [model.key, model.value])
        self._attention = merged(kind, [model.query, model.key, model.value])
        self._join = layer_of(kind, [model.join.weight])
        self._gates = layer_of(kind, [model.gate.weight, model.up.weight])
        self._down = layer_of(kind, [model.down.weight])
        self.store, self.read = self._built_store(), self._built_read()
        self.grow = self._built_grow()
        self.head = self._built_head(model.shared_layer(kind))
        if model.words is not None:
            self.call = EagleCall(self, model, model.words)

    def _built_store(self) -> GivenRows:
        build, keys = self._of_text(), self._keys
        inner = build.normal(self._rows_of_text(build), self._model.row_norm, EPSILON)
        both = build.product(inner, self._columns)
        own = build.turned(build.part(both, 0, keys))
        build.store(own, build.part(both, keys, keys), self._to)
        return build.program()

    def _built_read(self) -> GivenRows:
        build = self._of_text()
        return self._built_outputs(build, self._rows_of_text(build))

    def _built_grow(self) -> GivenRows:
        build, hidden = Builder(2 * self._hidden, self.rotary), self._hidden
        before, words = (build.part(build.given, at, hidden) for at in (0, hidden))
        return self._built_outputs(build, self._rows(build, before, self._model.own_norm, words))

    def _of_text(self) -> Builder:
        return Builder(self._model.width + self._hidden, self.rotary)

    def _rows_of_text(self, build: Builder) -> Operand:
        model, hidden = self._model, self._hidden
        features = build.part(build.given, 0, model.width)
        if self._fuse is not None:
            taps = [
                build.normal(build.part(build.given, place * hidden, hidden), norm, EPSILON)
                for place, norm in enumerate(model.tap_norms)
            ]
            features = build.product(reduce(build.beside, taps), self._fuse)
        words = build.part(build.given, model.width, hidden)
        return self._rows(build, features, model.feature_norm, words)

    def _rows(self, build: Builder, before: Operand, norm: torch.Tensor, words: Operand) -> Operand:
        words = build.normal(words, self._model.word_norm, EPSILON)
        both = build.beside(build.normal(before, norm, EPSILON), words)
        return build.product(both, self._enter)

    def _built_outputs(self, build: Builder, rows: Operand) -> GivenRows:
        model, keys = self._model, self._keys
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


class EagleCall(LevelCall):
    """Drafts of `model` with these programs. words: see `LevelCall`."""

    before, most_fresh, levels = 0, _MOST_FRESH, LONGEST

    def __init__(self, programs: EaglePrograms, model: EagleModel, words: WordTable) -> None:
        one, run = native.Eagle(width=model.width), kernels().draft_eagle
        super().__init__(one, run, model, words, programs.rotary)
        self._programs, self._rows = programs, 0

    def make_room(self, fresh: int, beam: int) -> None:
        """See `LevelCall.make_room`."""
        rows = max(beam, _MOST_FRESH)
        if rows <= self._rows:
            return
        programs, self._rows = self._programs, rows
        self._parts = [each.part(rows) for each in (programs.read, programs.grow, programs.head)]
        self.one.read, self.one.grow, self.one.head = (part.native for part in self._parts)


def compile_eagle(module: HeadModule, kind: type[BlockLinear]) -> EaglePrograms | None:
    """See `HeadModule.ready`."""
    if not isinstance(module, EagleModel) or not runs_here(module.config):
        return None
    return EaglePrograms(module, kind)
