"""Chimera's n-gram encoder, columns and levels as programs of the C library, and drafts in one
call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import cast

import torch

from paceline.drafters.attention_rows import normal
from paceline.drafters.called_levels import BlockPrograms, Floats
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.context_encoder import NgramEncoder
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, GivenRows, LayerOf, layers_of
from paceline.kernels.slots_seen import can_attend

AT_ONCE = 256
"""Most rows per call; memory for them is kept."""
_MOST_FRESH = 8
"""Most new tokens that the call of a draft takes over; a prompt is read in calls of its own."""
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

    def __init__(self, model: ChimeraModel, kind: type[BlockLinear]) -> None:
        encoder, bottom = model.encoder, cast(NgramEncoder, model.bottom)
        super().__init__(model, encoder)
        layer, hidden = layers_of(kind), model.hidden_size
        self._embed = bottom.embeddings
        build = Builder(bottom.order * hidden, layer)
        self.green = build.program(bottom.encoded(build.given))
        build = Builder(2 * hidden, layer, self.rotary)
        mature, green = build.given.split(2 * [hidden])
        self._store(normal(mature, encoder.mature_norm), _MATURE)
        self._store(normal(green, encoder.green_norm), _GREEN)
        self.read = build.program()
        self.levels = [self._level(depth, layer) for depth in range(model.config.heads)]
        if len(self.levels) <= _MOST_LEVELS:
            one, limits = native.Chimera(order=bottom.order), (_MOST_FRESH, len(self.levels))
            self._allow(kernels().draft_chimera, one, bottom.order, *limits)

    def _lend(self, rows: int) -> object:
        one = self.one
        green, read, *levels = (each.part(rows) for each in (self.green, self.read, *self.levels))
        of_levels = (native.Part * len(levels))(*(level.native for level in levels))
        one.green, one.read, one.levels = green.native, read.native, ctypes.addressof(of_levels)
        return green, read, levels, of_levels

    def encoded(self, ngrams: Sequence[Sequence[int]]) -> list[Floats]:
        """Green states [hidden] of n-grams."""
        found: list[Floats] = []
        for first in range(0, len(ngrams), AT_ONCE):
            ids = torch.tensor(ngrams[first : first + AT_ONCE], device="cpu")
            self.green.given(len(ids))[:] = self._embed(ids).flatten(1).float().numpy()
            found += [row.copy() for row in self.green.run(len(ids))]
        return found

    def _level(self, depth: int, layer: LayerOf) -> GivenRows:
        model, encoder = self.model, self.model.encoder
        build = Builder(2 * model.hidden_size, layer, self.rotary)
        green, mature = build.given.split(2 * [model.hidden_size])
        draft = self._outputs(green, encoder.green_norm, _GREEN, _ALL)
        if depth < model.config.heads - 1:  # nobody sees the draft states of the last level
            self._store(normal(draft, encoder.mature_norm), _MATURE)
        return build.program(model.finished(model.ends(depth, mature, draft)))


def compile_chimera(model: ChimeraModel, kind: type[BlockLinear]) -> ChimeraPrograms | None:
    """Programs for compact heads without blocks on an n-gram encoder; see `HeadModule.ready`."""
    config = model.config
    attends = can_attend(config.attention_heads, config.kv_heads)
    if config.form != "compact" or config.layers or config.bottom != "ngram" or not attends:
        return None
    return ChimeraPrograms(model, kind)
