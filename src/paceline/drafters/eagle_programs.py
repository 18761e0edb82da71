"""EAGLE's rows and head as programs of the C library, and whole drafts in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paceline.drafters.attention_rows import normal
from paceline.drafters.called_levels import BlockPrograms, CalledLevels, Floats, words_for
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.level_tree import BeamSettings
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, GivenRows, layers_of
from paceline.planning.draft_length import LONGEST
from paceline.records import WordTable

_AT_ONCE = 512  # most rows per call that reads a prompt; memory for them is kept


class EaglePrograms(BlockPrograms):
    """The parts of `model` as programs, see `BlockPrograms`.

    read: features and the embeddings after them side by side -> outputs, and columns in the cache.
    store: the columns alone. grow: as `read` for guesses, with the outputs of the rows before
    instead of features. head: outputs -> logits. `call` has them all but `store`.
    """

    model: EagleModel
    most_fresh = 16  # a prompt is read in calls of its own
    most_levels = LONGEST

    def __init__(self, model: EagleModel, words: WordTable, kind: type[BlockLinear]) -> None:
        one = native.Eagle(width=model.width)
        super().__init__(model, model, words, one, kernels().draft_eagle)
        layer, sizes = layers_of(kind), (model.width, model.hidden_size)
        build = Builder(sum(sizes), layer, self.rotary)
        features, after = build.given.split(sizes)
        rows = model.rows_of_text(features, self.embedded(after))
        self._store(normal(rows, model.row_norm))
        self.store = build.program()
        build = Builder(sum(sizes), layer, self.rotary)
        features, after = build.given.split(sizes)
        rows = model.rows_of_text(features, self.embedded(after))
        self.read = build.program(self._outputs(rows, model.row_norm))
        build = Builder(2 * model.hidden_size, layer, self.rotary)
        outputs, after = build.given.split(2 * [model.hidden_size])
        rows = model.rows_of_guesses(outputs, self.embedded(after))
        self._grow = build.program(self._outputs(rows, model.row_norm))
        build = Builder(model.hidden_size, layer)
        self._head = build.program(model.logits(build.given))

    def _lend(self, rows: int) -> object:
        one = self.one
        parts = [each.part(rows) for each in (self.read, self._grow, self._head)]
        one.read, one.grow, one.head = (part.native for part in parts)
        return parts


class ProgramLevels(CalledLevels):
    """Rows of one text and its drafts by programs, see `eagle_levels.ModuleLevels`."""

    _programs: EaglePrograms
    ahead = 1

    def __init__(self, model: EagleModel, settings: BeamSettings) -> None:
        super().__init__(model, settings)
        self._root = np.zeros((1, model.hidden_size), dtype=np.float32)  # its output

    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        last = len(states) - 1
        while self.length < last:  # nobody needs the outputs of these rows
            self._read(self._programs.store, text, states[: min(self.length + _AT_ONCE, last)])
        if self.length == last:
            self._root[:] = self._read(self._programs.read, text, states)

    def _read(self, program: GivenRows, text: Sequence[int], states: torch.Tensor) -> Floats:
        """Run a program over the next rows of the text, up to the last of these states."""
        tokens = torch.tensor(text[self.length + 1 : len(states) + 1], device="cpu")
        words = self._programs.rows_of(self._model.embeddings(tokens))
        return self._run(program, [states[self.length :].float().numpy(), words])

    def _point(self, one: Any) -> None:
        super()._point(one)
        one.root = self._root.ctypes.data


def compile_eagle(model: EagleModel, kind: type[BlockLinear]) -> EaglePrograms | None:
    """See `HeadModule.ready`."""
    words = words_for(model)
    return None if words is None else EaglePrograms(model, words, kind)
