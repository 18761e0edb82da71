"""Chimera's drafts, grown level by level: by the modules themselves, or as programs of a few calls.

On a CPU a level is one call of the C library and a search for the likeliest tokens (see
`paceline.kernels.programs.builder`); module by module, the operators of torch take longer to be
called than to compute.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from paceline.chains import ChainEnd
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.chimera_programs import (
    AT_ONCE,
    MOST_FRESH,
    ChimeraPrograms,
    Floats,
    TextColumns,
    layers_of,
)
from paceline.drafters.context_encoder import Context, Draft
from paceline.drafters.guesses import Guesses, guesses_of_program
from paceline.drafters.level_drafter import TextLevels
from paceline.drafters.level_tree import BeamSettings
from paceline.drafters.ngram_cache import Ngram, State
from paceline.kernels.native import signatures as native
from paceline.kernels.programs.buffers import PassBuffers
from paceline.tree import Tree

__all__ = ["Levels", "ModuleLevels", "ProgramLevels", "encoded", "levels_of", "restored"]


class Levels(TextLevels):
    """What Chimera keeps of one text, and a draft below it."""

    @abstractmethod
    def read(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """Take over what the target has read: states [n, hidden], n >= `length` and 1, of all
        tokens, and the green states of those beyond `length`."""

    @abstractmethod
    def begin(self) -> None:
        """A new draft: its first node is the root, at depth 0."""

    @abstractmethod
    def grow(
        self, depth: int, greens: Sequence[State], parents: Sequence[int], ranks: int
    ) -> Guesses:
        """Add the nodes of the next level and guess after them.

        greens, parents: see `Draft.grow`. ranks: likeliest tokens after each node.
        """


class ModuleLevels(Levels):
    """The modules of `model` one after the other. capacity: see `Context`."""

    def __init__(self, model: ChimeraModel, capacity: int) -> None:
        self._model = model
        self._context = Context(model.encoder, capacity)
        self._draft = Draft(self._context)
        self._mature = torch.empty(0)

    @property
    def length(self) -> int:  # type: ignore[override]
        """Tokens that the target has read."""
        return self._context.length

    def read(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """See `Levels.read`."""
        self._mature = states[-1]
        if greens:
            self._context.extend(states[self.length :], _rows_of(greens))

    def begin(self) -> None:
        """See `Levels.begin`."""
        self._draft = Draft(self._context)

    def grow(
        self,
        depth: int,
        greens: Sequence[State],
        parents: Sequence[int],
        ranks: int,
    ) -> Guesses:
        """See `Levels.grow`."""
        states = self._draft.grow(_rows_of(greens), parents)
        return self._model.guess(depth, self._mature, states, ranks, self._noise_at(depth))


class ProgramLevels(Levels):
    """Programs over a cache of the text's own.

    capacity: tokens that there is room for at first.

    Slot 2n of the cache is the mature (or draft) column of place n, slot 2n + 1 its green one, and
    nodes have places after the text, in the order in which they come.
    """

    def __init__(self, programs: ChimeraPrograms, model: ChimeraModel, capacity: int) -> None:
        self.length = 0
        self.most_fresh = 0 if programs.call is None else MOST_FRESH
        self._programs = programs
        self._token_list = model.token_list
        config, room = model.config, max(capacity, 1) + 64
        self._config = config
        shape = (1, config.kv_heads, 2 * room, config.head_size)
        self._use(torch.zeros(2, *shape))
        self._mature = np.empty(0, dtype=np.float32)
        self._sees: list[list[int]] = []  # after the text, by node: slots of it and those above

    def read(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """See `Levels.read`."""
        # From here on nothing is torch's: what a pass of the target has pushed out of the caches
        # makes an operator of torch slower than a small program.
        numbers = states.float().numpy()
        self._mature = numbers[-1]
        for first in range(0, len(greens), AT_ONCE):
            self._read(numbers[self.length :], greens[first : first + AT_ONCE])

    def _read(self, matures: Floats, greens: Sequence[State]) -> None:
        count, hidden = len(greens), matures.shape[1]
        end = self.length + count
        self._make_room(end)
        program = self._programs.read
        program.use_cache(self._layers)
        given = program.given(count)
        given[:, :hidden] = matures[:count]
        for row, green in enumerate(greens):
            given[row, hidden:] = green

        def see(rows: PassBuffers) -> None:
            for row in range(count):
                rows.positions[row] = rows.slots[row] = self.length + row

        program.run(count, end, see)
        self.length = end

    def draft(
        self,
        text: Sequence[int],
        states: torch.Tensor,
        budget: int,
        settings: BeamSettings,
        end: ChainEnd,
    ) -> tuple[Tree, int] | None:
        """See `Levels.draft`: in one call, but for prompts and texts of next to no tokens."""
        fresh, config = len(states) - self.length, self._config
        call = self._programs.call
        if call is None or fresh > self.most_fresh or len(text) < config.order + fresh:
            return None
        if states.dtype != torch.float32 or states.stride(-1) != 1:
            return None
        self._make_room(len(states) + 1 + (config.heads - 1) * settings.beam)
        columns = TextColumns(self.length, self._addresses)
        found = call.draft(text, columns, states, budget, settings, end, self.noise)
        self.length += fresh
        return found

    def begin(self) -> None:
        """See `Levels.begin`."""
        self._sees = []

    def grow(
        self,
        depth: int,
        greens: Sequence[State],
        parents: Sequence[int],
        ranks: int,
    ) -> Guesses:
        """See `Levels.grow`."""
        count, first = len(parents), self.length + len(self._sees)
        self._make_room(first + count)
        for place, parent in enumerate(parents, start=first):
            above = [] if parent < 0 else self._sees[parent]
            self._sees.append([*above, 2 * place, 2 * place + 1])
        position, seen = self.length + depth, self._sees[-count:]

        def see(rows: PassBuffers) -> None:
            rows.positions[:count], rows.count[0, :count] = position, 2 * self.length
            begin = 0
            for row, slots in enumerate(seen):
                end = begin + len(slots) - 1
                rows.slots[row] = first + row
                # Its own draft state is not known yet.
                rows.extra[0, begin:end] = [*slots[:-2], slots[-1]]
                rows.begins[0, row + 1] = begin = end

        program, hidden = self._programs.levels[depth], len(self._mature)
        program.use_cache(self._layers)
        given = program.given(count)
        given[:, hidden:] = self._mature
        for row, green in enumerate(greens):
            given[row, :hidden] = green
        program.run(count, position + 1, see)
        return guesses_of_program(program, count, ranks, self._token_list, self._noise_at(depth))

    def _make_room(self, places: int) -> None:
        room = self._held.shape[3]
        if 2 * places > room:
            wider = torch.zeros(*self._held.shape[:3], 4 * places, self._held.shape[4])
            wider[:, :, :, :room] = self._held
            self._use(wider)

    def _use(self, held: torch.Tensor) -> None:
        self._held, self._layers = held, layers_of(held)
        each = (layer.as_native() for layer in self._layers)
        self._addresses = (native.Layer * len(self._layers))(*each)


def levels_of(model: ChimeraModel, capacity: int = 256) -> Levels:
    """The memory of a new text and drafts below it, as fast as can be had here."""
    if isinstance(model.programs, ChimeraPrograms):
        return ProgramLevels(model.programs, model, capacity)
    return ModuleLevels(model, capacity)


def encoded(model: ChimeraModel, ngrams: Sequence[Ngram]) -> Sequence[State]:
    """The green states of n-grams, each in memory of its own: a row of many would keep them all."""
    if isinstance(model.programs, ChimeraPrograms):
        return model.programs.encoded(ngrams)
    return [state.clone() for state in model.green(torch.tensor(ngrams))]


def restored(model: ChimeraModel, numbers: torch.Tensor) -> State:
    """Numbers [hidden] as `encoded` makes them."""
    return numbers.to(model.device) if model.programs is None else numbers.numpy()


def _rows_of(states: Sequence[State]) -> torch.Tensor:
    """[n, hidden]."""
    return torch.stack([torch.as_tensor(state) for state in states])
