"""EAGLE's rows and head as programs of the C library, and a whole draft in one call."""

from __future__ import annotations

from functools import reduce

import torch

from paceline.drafters.attention_rows import EPSILON
from paceline.drafters.called_levels import BlockPrograms, LevelCall, runs_here
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.medusa_heads import HeadModule
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, GivenRows, layer_of
from paceline.kernels.programs.program import CacheLayer
from paceline.kernels.programs.steps import Operand
from paceline.planning.draft_length import LONGEST

__all__ = ["AT_ONCE", "EaglePrograms", "compile_eagle"]

AT_ONCE = 512
"""Most rows per call; memory for them is kept."""
_MOST_FRESH = 16
"""Most rows of the text in the call of a draft; a prompt is read in calls of its own."""


class EaglePrograms(BlockPrograms):
    """The parts of `model` as programs, see `BlockPrograms`.

    read: features and the embeddings after them side by side -> outputs, and columns in the cache.
    store: the columns alone. grow: as `read` for guesses, with the outputs of the rows before
    instead of features. head: outputs -> logits. `call` has them all but `store`.
    """

    model: EagleModel

    def __init__(self, model: EagleModel, kind: type[BlockLinear]) -> None:
        super().__init__(model, model, model.config, kind)
        self._fuse = layer_of(kind, [model.fuse.weight]) if model.config.layers else None
        self._enter = layer_of(kind, [model.enter.weight])
        self.store, self.read = self._built_store(), self._built_read()
        self.grow = self._built_grow()
        self.head = self._built_head(model.shared_layer(kind))
        if model.words is not None:
            one, run = native.Eagle(width=model.width), kernels().draft_eagle
            self.call = LevelCall(self, model.words, one, run, 0, _MOST_FRESH, LONGEST)

    def layers_of(self, held: torch.Tensor) -> list[CacheLayer]:
        """See `BlockPrograms.layers_of`; held: [2, KV heads, columns, head size]."""
        keys, values = held[:, None]
        return [CacheLayer(keys, values)]

    def lend(self, one: native.Chimera | native.Eagle, rows: int) -> object:
        """See `BlockPrograms.lend`."""
        parts = [each.part(rows) for each in (self.read, self.grow, self.head)]
        one.read, one.grow, one.head = (part.native for part in parts)
        return parts

    def _built_store(self) -> GivenRows:
        build = self._of_text()
        self._store(build, self._rows_of_text(build), self.model.row_norm)
        return build.program()

    def _built_read(self) -> GivenRows:
        build = self._of_text()
        rows = self._rows_of_text(build)
        return build.program(self._outputs(build, rows, self.model.row_norm))

    def _built_grow(self) -> GivenRows:
        build, hidden = Builder(2 * self._hidden, self.rotary), self._hidden
        before, words = (build.part(build.given, at, hidden) for at in (0, hidden))
        rows = self._rows(build, before, self.model.own_norm, words)
        return build.program(self._outputs(build, rows, self.model.row_norm))

    def _of_text(self) -> Builder:
        return Builder(self.model.width + self._hidden, self.rotary)

    def _rows_of_text(self, build: Builder) -> Operand:
        model, hidden = self.model, self._hidden
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
        words = build.normal(words, self.model.word_norm, EPSILON)
        both = build.beside(build.normal(before, norm, EPSILON), words)
        return build.product(both, self._enter)

    def _built_head(self, head: BlockLinear) -> GivenRows:
        build = Builder(self._hidden)
        return build.program(
            build.product(build.normal(build.given, self.model.last_norm, EPSILON), head)
        )


def compile_eagle(module: HeadModule, kind: type[BlockLinear]) -> EaglePrograms | None:
    """See `HeadModule.ready`."""
    if not isinstance(module, EagleModel) or not runs_here(module.config):
        return None
    return EaglePrograms(module, kind)
