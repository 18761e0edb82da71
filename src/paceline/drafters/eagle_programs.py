"""EAGLE's rows and head as programs of the C library, and a whole draft in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.chains import ChainEnd
from paceline.drafters.attention_rows import EPSILON
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.found_trees import FoundTree
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.medusa_heads import HeadModule
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.chain_ends import NativeEnd
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, Columns, GivenRows, Rotary, layer_of, merged
from paceline.kernels.programs.program import TableAddresses
from paceline.kernels.programs.steps import Join, Operand
from paceline.records import WordTable
from paceline.tree import Tree

__all__ = ["AT_ONCE", "MOST_FRESH", "EaglePrograms", "Floats", "TextColumns", "compile_eagle"]

Floats = NDArray[np.float32]

AT_ONCE = 512
"""Most rows per call; memory for them is kept."""
MOST_FRESH = 16
"""Most rows of the text in the call of a draft; a prompt is read in calls of its own."""


class EaglePrograms:
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
        self.call: EagleCall | None = None
        if model.words is not None:
            self.call = EagleCall(self, model.words, model.width, model.token_ids, model.outputs)

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


class TextColumns(NamedTuple):
    """What is kept of a text from call to call.

    length: rows that have columns. root: the address of the root's output. layers: where columns
    are.
    """

    length: int
    root: int
    layers: ctypes.Array[native.Layer]


class EagleCall:
    """Drafts with these programs, for any text.

    words: the target's embeddings. width: numbers of a feature. token_ids, outputs: see
    `HeadModule`.
    """

    def __init__(
        self,
        programs: EaglePrograms,
        words: WordTable,
        width: int,
        token_ids: torch.Tensor | None,
        outputs: int,
    ) -> None:
        self._programs, self._words = programs, words
        self._tables = TableAddresses(programs.rotary)
        self._found, self._end = FoundTree(outputs, token_ids), NativeEnd()
        self._text = (ctypes.c_int64 * MOST_FRESH)()
        self._rows = 0
        self._one = native.Eagle(
            width=width,
            hidden=words.hidden,
            text=ctypes.addressof(self._text),
            words=words.address,
            words_format=words.format,
            words_count=words.count,
        )

    def draft(
        self,
        text: Sequence[int],
        columns: TextColumns,
        features: torch.Tensor,
        budget: int,
        settings: BeamSettings,
        end: ChainEnd,
        noise: torch.Tensor | None = None,
    ) -> tuple[Tree, int]:
        """The likeliest guesses, and how many levels were grown.

        text: up to the root. columns: those of its rows, with room for the new ones and the
        draft's. features: float32 [tokens that the target has read, width], at most `MOST_FRESH` of
        them new. end: see `LevelPlan.end`. noise: see `FoundTree.native`.
        """
        one, fresh = self._one, len(features) - columns.length
        one.depth, one.beam = len(end.least), settings.beam
        one.least = max(settings.least, end.worth)
        self._make_room(max(settings.beam, MOST_FRESH))
        self._tables.extend(one, len(features) + one.depth)
        self._text[:fresh] = list(text[len(text) - fresh :])
        one.length, one.fresh, one.root = columns.length, fresh, columns.root
        one.states, one.states_stride = features.data_ptr(), features.stride(0)
        one.layers, one.end = ctypes.addressof(columns.layers), self._end.address(end)
        one.guesses = self._found.native(budget, settings.ranks, noise)
        kernels().draft_eagle(ctypes.addressof(one))
        return self._found.tree(one.guesses.nodes), one.grown

    def _make_room(self, rows: int) -> None:
        if rows <= self._rows:
            return
        programs, self._rows = self._programs, rows
        self._parts = [each.part(rows) for each in (programs.read, programs.grow, programs.head)]
        self._one.read, self._one.grow, self._one.head = (part.native for part in self._parts)


def compile_eagle(module: HeadModule, kind: type[BlockLinear]) -> EaglePrograms | None:
    """See `HeadModule.ready`."""
    return EaglePrograms(module, kind) if isinstance(module, EagleModel) else None
