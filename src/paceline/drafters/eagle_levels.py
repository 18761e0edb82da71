"""EAGLE's levels as this machine runs them fastest: as programs, in graphs, or by the modules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.drafters.called_levels import CalledLevels, Floats
from paceline.drafters.eagle_graphs import GraphLevels, graphs_of
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.eagle_programs import AT_ONCE, EaglePrograms
from paceline.drafters.eagle_rows import ROOM, Levels, ModuleLevels
from paceline.drafters.guesses import Guesses, guesses_of_program
from paceline.kernels.native import signatures as native
from paceline.kernels.programs.buffers import PassBuffers
from paceline.kernels.programs.builder import GivenRows

__all__ = ["ProgramLevels", "levels_of"]


class ProgramLevels(CalledLevels, Levels):
    """Runs programs over the text's own cache. capacity: tokens to make room for at first."""

    _programs: EaglePrograms

    def __init__(self, programs: EaglePrograms, model: EagleModel, capacity: int) -> None:
        config = model.config
        shape = 2, config.kv_heads, capacity + ROOM, config.head_size
        super().__init__(programs, torch.zeros(shape, dtype=torch.float32, device="cpu"))
        self._model = model
        # The output of the root, and those of all nodes.
        self._root = np.zeros((1, model.hidden_size), dtype=np.float32)
        self._outputs = self._root

    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        """See `Levels.read`."""
        self._room_for(len(states))
        last = len(states) - 1
        while self.length < last:  # nobody needs the outputs of these rows
            self._run_text(self._programs.store, text, states[: min(self.length + AT_ONCE, last)])
        self._root[:] = self._run_text(self._programs.read, text, states)[-1]

    def _run_text(self, program: GivenRows, text: Sequence[int], states: torch.Tensor) -> Floats:
        """Run a program over the rows of the text that come after its first `length`."""
        first, end = self.length, len(states)
        program.use_cache(self._layers)
        given = program.given(end - first)
        given[:, : self._model.width] = states[first:].float().numpy()
        self._put_words(text[first + 1 : end + 1], given[:, self._model.width :])

        def see(rows: PassBuffers) -> None:
            places = np.arange(first, end)
            rows.positions[: len(places)] = rows.slots[: len(places)] = places
            rows.count[: len(places)] = places + 1

        self.length = end
        return program.run(end - first, end, see)

    def begin(self, ranks: int) -> Guesses:
        """See `Levels.begin`."""
        self._sees, self._outputs = [[]], self._root
        return self._guessed(self._root, ranks, self._noise_at(0))

    def grow(self, tokens: Sequence[int], parents: Sequence[int], ranks: int) -> Guesses:
        """See `Levels.grow`."""
        count, slots = len(parents), self._placed(parents)
        self._room_for(slots.stop)
        seen = self._sees[-count:]

        def see(rows: PassBuffers) -> None:
            rows.slots[:count], rows.count[:count] = slots, self.length
            begin = 0
            for row, own in enumerate(seen):
                rows.positions[row] = self.length + len(own) - 1
                rows.extra[begin : begin + len(own)] = own
                rows.begins[row + 1] = begin = begin + len(own)

        program, hidden = self._programs.grow, self._model.hidden_size
        program.use_cache(self._layers)
        given = program.given(count)
        given[:, :hidden] = self._outputs[list(parents)]
        self._put_words(tokens, given[:, hidden:])
        outputs = program.run(count, slots.stop, see)
        self._outputs = np.concatenate([self._outputs, outputs])
        return self._guessed(outputs, ranks, self._noise_at(len(seen[0])))

    def _guessed(self, outputs: np.ndarray, ranks: int, noise: torch.Tensor | None) -> Guesses:
        head, count = self._programs.head, len(outputs)
        head.given(count)[:] = outputs
        head.run(count)
        return guesses_of_program(head, count, ranks, self._model.token_list, noise)

    def _put_words(self, tokens: Sequence[int], given: np.ndarray) -> None:
        given[:] = self._model.embeddings(torch.tensor(tokens, device="cpu")).float().numpy()

    def _point(self, one: native.Chimera | native.Eagle) -> None:
        super()._point(one)
        one.root = self._root.ctypes.data


def levels_of(model: EagleModel, capacity: int = 256) -> Levels:
    """The memory of a new text and drafts after it, as fast as this machine allows."""
    if isinstance(model.programs, EaglePrograms):
        return ProgramLevels(model.programs, model, capacity)
    graphs = graphs_of(model)
    return ModuleLevels(model, capacity) if graphs is None else GraphLevels(graphs, model, capacity)
