"""Chimera's n-gram encoder, columns and levels as programs of the C library, and drafts in one
call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafters.attention_rows import EPSILON
from paceline.drafters.called_levels import CalledPrograms, LevelCall, runs_here
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.medusa_heads import HeadModule
from paceline.drafters.ngram_encoder import NgramEncoder
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.linear import PlainLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, Columns, GivenRows, Rotary, layer_of, merged
from paceline.kernels.programs.program import CacheLayer
from paceline.kernels.programs.steps import Function, Join, Operand
from paceline.records import WordTable

__all__ = ["AT_ONCE", "ChimeraPrograms", "Floats", "compile_chimera", "layers_of"]

Floats = NDArray[np.float32]

AT_ONCE = 256
"""Most rows per call; memory for them is kept."""
_MOST_FRESH = 8
"""Most new tokens that the call of a draft takes over; a prompt is read in calls of its own."""
_MOST_LEVELS = _MOST_ORDER = 8  # MOST_LEVELS, MOST_ORDER
_WORDS_KEPT = 2048
# Layers of the cache: all slots, odd ones, even ones.
_ALL, _GREEN, _MATURE = range(3)


class ChimeraPrograms(CalledPrograms):
    """The parts of `model` as programs, with layers of this kind.

    bottom: its n-gram encoder. heads: for each compact head, the one or two matrices that read its
    two states.

    green: embeddings of n-grams -> green states. read: mature and green states side by side ->
    columns in the cache. levels: by depth, green states and the last mature one side by side ->
    logits, and columns in the cache. rotary: of the last two. call: all of them in one call; None
    if unavailable.

    Raises UnpackableError for a kind that is unavailable here.
    """

    def __init__(
        self,
        model: ChimeraModel,
        bottom: NgramEncoder,
        heads: Sequence[Sequence[torch.Tensor]],
        kind: type[BlockLinear],
    ) -> None:
        config, encoder = model.config, model.encoder
        self._model, self._hidden = model, model.hidden_size
        self.rotary = Rotary(config.head_size, config.rotary_base)
        self._keys = config.kv_heads * config.head_size
        self._queries = config.attention_heads * config.head_size
        self._columns = merged(kind, [encoder.key, encoder.value])
        self._attention = merged(kind, [encoder.query, encoder.key, encoder.value])
        self._join = layer_of(kind, [encoder.join.weight])
        self._gates = layer_of(kind, [encoder.gate.weight, encoder.up.weight])
        self._down = layer_of(kind, [encoder.down.weight])
        self._head = model.shared_layer(kind)
        self._order, self._words = bottom.order, dict[int, Floats]()
        self._embed = bottom.embeddings
        self.green = self._built_green(bottom, kind)
        self.read = self._built_read()
        self.levels = [
            self._built_level([layer_of(kind, [one]) for one in weights], depth + 1 == len(heads))
            for depth, weights in enumerate(heads)
        ]
        if model.words is not None and ChimeraCall.fits(len(heads), bottom.order):
            self.call = ChimeraCall(self, model, model.words, bottom.order)

    def encoded(self, ngrams: Sequence[Sequence[int]]) -> list[Floats]:
        """Green states [hidden] of n-grams."""
        found: list[Floats] = []
        for first in range(0, len(ngrams), AT_ONCE):
            some = ngrams[first : first + AT_ONCE]
            self._put_words(some, self.green.given(len(some)).reshape(len(some), self._order, -1))
            found += [row.copy() for row in self.green.run(len(some))]
        return found

    def _put_words(self, ngrams: Sequence[Sequence[int]], given: Floats) -> None:
        """Write embeddings to `given` [n, order, hidden]. Recent ones are kept: looking them up one
        by one takes as long as a small program."""
        words = self._words
        if missing := [*{token for ngram in ngrams for token in ngram if token not in words}]:
            if len(words) > _WORDS_KEPT:
                words.clear()
                missing = [*{token for ngram in ngrams for token in ngram}]
            rows = self._embed(torch.tensor(missing, device="cpu")).float().numpy()
            words.update(zip(missing, rows, strict=True))
        for row, ngram in enumerate(ngrams):
            for place, token in enumerate(ngram):
                given[row, place] = words[token]

    def _built_green(self, bottom: NgramEncoder, kind: type[BlockLinear]) -> GivenRows:
        build = Builder(bottom.order * self._hidden)
        narrow = build.given
        if bottom.narrow is not None:
            narrow = build.product(narrow, layer_of(kind, [bottom.narrow.weight]))
        block = layer_of(kind, [bottom.block.weight], bottom.block.bias)
        changed = build.product(narrow, block)
        words = build.map(changed, Join.PLUS, build.given, Function.SILU)
        return build.program(build.product(words, layer_of(kind, [bottom.down.weight])))

    def _built_read(self) -> GivenRows:
        build, hidden = Builder(2 * self._hidden, self.rotary), self._hidden
        for layer, at, norm in (
            (_MATURE, 0, self._model.encoder.mature_norm),
            (_GREEN, hidden, self._model.encoder.green_norm),
        ):
            self._store(build, build.part(build.given, at, hidden), norm, layer)
        return build.program()

    def _store(self, build: Builder, states: Operand, norm: torch.Tensor, layer: int) -> None:
        both = build.product(build.normal(states, norm, EPSILON), self._columns)
        keys = build.turned(build.part(both, 0, self._keys))
        build.store(keys, build.part(both, self._keys, self._keys), self._to(layer))

    def _built_level(self, head: Sequence[BlockLinear], last: bool) -> GivenRows:
        encoder, hidden, keys = self._model.encoder, self._hidden, self._keys
        build = Builder(2 * hidden, self.rotary)
        green = build.part(build.given, 0, hidden)
        mature = build.part(build.given, hidden, hidden)
        three = build.product(build.normal(green, encoder.green_norm, EPSILON), self._attention)
        queries = build.turned(build.part(three, 0, self._queries))
        own = build.turned(build.part(three, self._queries, keys))
        build.store(own, build.part(three, self._queries + keys, keys), self._to(_GREEN))
        attended = build.product(build.attended(queries, self._to(_ALL)), self._join)
        states = build.map(attended, Join.PLUS, green)
        inner = build.normal(states, encoder.inner_norm, EPSILON)
        draft = build.map(build.gated(inner, self._gates, self._down), Join.PLUS, states)
        if encoder.output_norm is not None:
            draft = build.normal(draft, encoder.output_norm, EPSILON)
        if not last:
            self._store(build, draft, encoder.mature_norm, _MATURE)
        read = build.beside(mature, draft) if self._model.config.residual else draft
        for layer in head:
            read = build.product(read, layer)
        if self._model.config.rank:
            read = build.map(read, Join.PLUS, draft)
        return build.program(build.product(read, self._head))

    def _to(self, layer: int) -> Columns:
        return Columns(layer, self._model.config.kv_heads, self._model.config.head_size)


class ChimeraCall(LevelCall):
    """Drafts of `model` with these programs. words: see `LevelCall`. order: of n-grams."""

    most_fresh = _MOST_FRESH

    def __init__(
        self, programs: ChimeraPrograms, model: ChimeraModel, words: WordTable, order: int
    ) -> None:
        self.before, self.levels = order, len(programs.levels)
        one, run = native.Chimera(order=order), kernels().draft_chimera
        super().__init__(one, run, model, words, programs.rotary)
        self._programs, self._rows = programs, 0

    @staticmethod
    def fits(levels: int, order: int) -> bool:
        """Whether the library supports this many levels, and n-grams of this order."""
        return levels <= _MOST_LEVELS and order <= _MOST_ORDER

    def make_room(self, fresh: int, beam: int) -> None:
        """See `LevelCall.make_room`."""
        rows = 1 + _MOST_FRESH if fresh >= beam else beam
        if rows <= self._rows:
            return
        programs, self._rows = self._programs, rows
        self._parts = [each.part(rows) for each in (programs.green, programs.read)]
        self._of_levels = [level.part(rows) for level in programs.levels]
        self._levels = (native.Part * len(self._of_levels))(*(p.native for p in self._of_levels))
        self.one.green, self.one.read = (part.native for part in self._parts)
        self.one.levels = ctypes.addressof(self._levels)


def compile_chimera(module: HeadModule, kind: type[BlockLinear]) -> ChimeraPrograms | None:
    """Programs for compact heads without blocks on an n-gram encoder; see `HeadModule.ready`."""
    if not isinstance(module, ChimeraModel) or not isinstance(module.bottom, NgramEncoder):
        return None
    if module.config.form != "compact" or module.config.layers or not runs_here(module.config):
        return None
    heads = [
        [layer.weight for layer in head.modules() if isinstance(layer, PlainLinear)]
        for head in module.own_heads
    ]
    return ChimeraPrograms(module, module.bottom, heads, kind)


def layers_of(held: torch.Tensor) -> list[CacheLayer]:
    """Layers of the cache in `held` [2, 1, heads, slots, size], keys and values."""
    keys, values = held
    return [
        CacheLayer(keys[:, :, begin::step], values[:, :, begin::step])
        for begin, step in ((0, 1), (1, 2), (0, 2))
    ]
