"""EAGLE's rows of one text and its drafts: by the modules themselves, or as programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.chains import ChainEnd
from paceline.drafters.called_levels import CalledLevels, Floats
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.eagle_programs import AT_ONCE, EaglePrograms
from paceline.drafters.guesses import Guesses, guesses_of_program
from paceline.drafters.level_drafter import TextLevels
from paceline.drafters.level_tree import BeamSettings, LevelTree, grown
from paceline.kernels.native import signatures as native
from paceline.kernels.programs.buffers import PassBuffers
from paceline.kernels.programs.builder import GivenRows
from paceline.tree import ROOT, Tree

ROOM = 64
"""Columns, for drafts after a text."""


class Levels(TextLevels, ABC):
    """Columns of one text, and of a draft after it.

    Each place of the text but the first has a row; column i is that of place i + 1. Rows of guesses
    come after these. The text has `length` rows.
    """

    # By node, the root first: slots of the guesses on the path to it.
    _sees: list[list[int]]
    # A row reads the token after its feature. So the root's is always read again: a draft needs its
    # output, which is not kept.
    ahead = 1

    @abstractmethod
    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        """Take over what the target has read: states [n, width] of all but the root."""

    @abstractmethod
    def begin(self, ranks: int) -> Guesses:
        """Begin a draft: guess after the root, node 0. ranks: guesses after each node."""

    @abstractmethod
    def grow(self, tokens: Sequence[int], parents: Sequence[int], ranks: int) -> Guesses:
        """Add the next level, nodes with these tokens and parents, and guess after each. Nodes are
        numbered in the order they are added."""

    def grown(self, settings: BeamSettings, budget: int, end: ChainEnd) -> tuple[Tree, int]:
        """A draft of at most `budget` nodes, and its number of levels."""

        def grow(tree: LevelTree, level: Sequence[int], parents: Sequence[int]) -> Guesses:
            if level == [ROOT]:
                return self.begin(settings.ranks)
            return self.grow([tree.tokens[node] for node in level], parents, settings.ranks)

        return grown(settings, budget, end, grow)

    def _placed(self, parents: Sequence[int]) -> range:
        """Slots of new nodes with these parents."""
        first = self.length + len(self._sees) - 1
        slots = range(first, first + len(parents))
        self._sees += [
            [*self._sees[parent], slot] for parent, slot in zip(parents, slots, strict=True)
        ]
        return slots

    def _places(self, count: int) -> list[int]:
        """Places of the last `count` nodes."""
        return [self.length + len(slots) - 1 for slots in self._sees[-count:]]

    def _mask(self, count: int, columns: int) -> NDArray[np.bool_]:
        """Which of the first `columns` columns each of the last `count` nodes sees."""
        sees = np.zeros((count, columns), dtype=np.bool_)
        sees[:, : self.length] = True
        for row, own in enumerate(self._sees[-count:]):
            sees[row, own] = True
        return sees


class ModuleLevels(Levels):
    """Runs the modules of `model`. capacity: tokens to make room for at first."""

    def __init__(self, model: EagleModel, capacity: int) -> None:
        config = model.config
        shape = 2, config.kv_heads, capacity + ROOM, config.head_size
        super().__init__(model.feature_norm.new_zeros(shape))
        self._model = model
        self._outputs = torch.empty(0)  # of nodes

    @torch.no_grad()
    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        """See `Levels.read`."""
        first, end = self.length, len(states)
        tokens = torch.tensor(text[first + 1 : end + 1], device=states.device)
        rows = self._model.rows_of_text(states[first:].float(), tokens)
        places = torch.arange(first, end, device=states.device)
        self._make_room(end)
        self._model.store(self._held, rows, places, places)
        sees = torch.ones(1, end, dtype=torch.bool, device=states.device)
        last, held = rows[-1:], self._held[:, :, :end]  # nobody needs the outputs of the others
        self._outputs = self._model.outputs_with(held, last, places[-1:], sees)
        self.length = end

    def begin(self, ranks: int) -> Guesses:
        """See `Levels.begin`."""
        self._sees, self._outputs = [[]], self._outputs[:1]
        return self._model.guess(self._outputs, ranks, self._noise_at(0))

    @torch.no_grad()
    def grow(self, tokens: Sequence[int], parents: Sequence[int], ranks: int) -> Guesses:
        """See `Levels.grow`."""
        device = self._outputs.device
        said = torch.tensor(tokens, device=device)
        rows = self._model.rows_of_guesses(self._outputs[list(parents)], said)
        slots = self._placed(parents)
        places = torch.tensor(self._places(len(parents)), device=device)
        sees = torch.from_numpy(self._mask(len(parents), slots.stop)).to(device)
        self._make_room(slots.stop)
        self._model.store(self._held, rows, places, torch.tensor(slots, device=device))
        held = self._held[:, :, : slots.stop]
        outputs = self._model.outputs_with(held, rows, places, sees)
        self._outputs = torch.cat([self._outputs, outputs])
        return self._model.guess(outputs, ranks, self._noise_at(len(self._sees[-1])))


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
