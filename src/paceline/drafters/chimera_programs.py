"""Chimera's n-gram encoder, columns and levels as programs of the C library, and whole drafts in one
call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from paceline.drafters.attention_rows import normal
from paceline.drafters.called_levels import BlockPrograms, CalledLevels, Floats, words_for
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.context_encoder import NgramEncoder
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.ngram_cache import NgramCache, ngrams_of
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, GivenRows, LayerOf, layers_of
from paceline.records import WordTable

_AT_ONCE = 256  # most rows per call that reads a prompt; memory for them is kept
_MOST_LEVELS = 8  # MOST_LEVELS; its MOST_ORDER is more than any configuration has
_ALL, _GREEN, _MATURE = range(3)  # layers of the cache


class ChimeraPrograms(BlockPrograms):
    """The parts of `model` as programs, see `BlockPrograms`.

    green: embeddings of n-grams -> green states. read: mature and green states side by side ->
    columns in the cache. levels: by depth, green states and the last mature one side by side ->
    logits, and columns in the cache. `call` has them all.
    """

    model: ChimeraModel
    layers = (0, 1), (1, 2), (0, 2)  # all slots, odd ones, even ones
    most_fresh = 8  # a prompt is read in calls of its own

    def __init__(self, model: ChimeraModel, words: WordTable, kind: type[BlockLinear]) -> None:
        encoder, bottom = model.encoder, cast(NgramEncoder, model.bottom)
        self.before, self.most_levels = bottom.order, model.config.heads
        one = native.Chimera(order=bottom.order)
        super().__init__(model, encoder, words, one, kernels().draft_chimera)
        layer, hidden = layers_of(kind), model.hidden_size
        self._embed = bottom.embeddings
        build = Builder(bottom.order * hidden, layer)
        self._green = build.program(bottom.encoded(self.embedded(build.given)))
        build = Builder(2 * hidden, layer, self.rotary)
        mature, green = build.given.split(2 * [hidden])
        self._store(normal(mature, encoder.mature_norm), _MATURE)
        self._store(normal(green, encoder.green_norm), _GREEN)
        self.read = build.program()
        self.levels = [self._level(depth, layer) for depth in range(model.config.heads)]

    def _lend(self, rows: int) -> object:
        one = self.one
        green, read, *levels = (each.part(rows) for each in (self._green, self.read, *self.levels))
        of_levels = (native.Part * len(levels))(*(level.native for level in levels))
        one.green, one.read, one.levels = green.native, read.native, ctypes.addressof(of_levels)
        return green, read, levels, of_levels

    def encoded(self, ngrams: Sequence[Sequence[int]]) -> list[Floats]:
        """Green states [hidden] of n-grams."""
        found: list[Floats] = []
        for first in range(0, len(ngrams), _AT_ONCE):
            ids = torch.tensor(ngrams[first : first + _AT_ONCE], device="cpu")
            self._green.given(len(ids))[:] = self.rows_of(self._embed(ids).flatten(1))
            found += [row.copy() for row in self._green.run(len(ids))]
        return found

    def _level(self, depth: int, layer: LayerOf) -> GivenRows:
        model, encoder = self.model, self.model.encoder
        build = Builder(2 * model.hidden_size, layer, self.rotary)
        green, mature = build.given.split(2 * [model.hidden_size])
        draft = self._outputs(green, encoder.green_norm, _GREEN, _ALL)
        if depth < model.config.heads - 1:  # nobody sees the draft states of the last level
            self._store(normal(draft, encoder.mature_norm), _MATURE)
        return build.program(model.finished(model.ends(depth, mature, draft)))


class ProgramLevels(CalledLevels):
    """Columns of one text and its drafts by programs, see `chimera_levels.ModuleLevels`."""

    _programs: ChimeraPrograms
    per_place = 2

    def __init__(self, model: ChimeraModel, settings: BeamSettings, greens: NgramCache) -> None:
        super().__init__(model, settings)
        self._greens = greens

    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        ngrams = ngrams_of(text, range(self.length, len(states)), self._programs.before)
        greens = self._greens.states(ngrams, self.record)
        matures = states[self.length :].float().numpy()
        for first in range(0, len(greens), _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            self._run(self._programs.read, [matures[rows], np.stack(greens[rows])])


def compile_chimera(model: ChimeraModel, kind: type[BlockLinear]) -> ChimeraPrograms | None:
    """Programs for compact heads without blocks on an n-gram encoder; see `HeadModule.ready`."""
    config = model.config
    compact = config.form == "compact" and not config.layers and config.bottom == "ngram"
    words = words_for(model) if compact and config.heads <= _MOST_LEVELS else None
    return None if words is None else ChimeraPrograms(model, words, kind)
