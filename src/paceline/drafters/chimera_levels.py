"""Chimera's drafts, grown level by level: by the modules themselves, or as programs in a few calls.

On a CPU a level is one call of the C library and a search for the likeliest tokens. Module by
module, calling torch's operators takes longer than their computation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.drafters.attention_rows import Columns
from paceline.drafters.called_levels import CalledLevels, Floats
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.chimera_programs import AT_ONCE, ChimeraPrograms
from paceline.drafters.guesses import Guesses, guesses_of, guesses_of_program
from paceline.drafters.level_drafter import TextLevels
from paceline.drafters.ngram_cache import Ngram, State
from paceline.kernels.programs.buffers import PassBuffers


class ModuleLevels(TextLevels):
    """Runs the modules of `model` one after the other. capacity: see `Context`."""

    def __init__(self, model: ChimeraModel, capacity: int) -> None:
        config = model.config
        shape = 2, 1, config.kv_heads, 2 * max(capacity, 1), config.head_size
        super().__init__(model.encoder.mature_norm.new_zeros(shape))
        self._model = model
        self._mature = torch.empty(0)
        self.begin()

    @torch.no_grad()
    def read(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """Take over what the target has read. states: [n, hidden] of all n tokens, n >= `length`
        and n >= 1. greens: the green states of those beyond `length`."""
        self._mature = states[-1].clone()  # a view would keep all states of the target
        if not greens:
            return
        encoder, matures = self._model.encoder, states[None, self.length :].float()
        end = self.length + len(greens)
        places = torch.arange(self.length, end, device=matures.device)[None]
        self._put(2 * self.length, encoder.mature(matures, places), 2)
        self._put(2 * self.length + 1, encoder.green(_rows_of(greens), places), 2)
        self.length = end

    def begin(self) -> None:
        """Begin a draft. Its first node is the root, at depth 0."""
        self._end = 2 * self.length
        # By node: the slots it sees after the text's, and the slot of its draft state.
        self._sees: list[list[int]] = []
        self._slots: list[int] = []
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None

    @torch.no_grad()
    def grow(
        self, depth: int, greens: Sequence[State], parents: Sequence[int], ranks: int
    ) -> Guesses:
        """Add the nodes of the next level, see `drafts`, and make `ranks` guesses after each."""
        states = self.drafts(depth, greens, parents)
        logits = self._model.logits(depth, self._mature, states)
        return guesses_of(logits, ranks, self._model.token_ids, self._noise_at(depth))

    @torch.no_grad()
    def drafts(self, depth: int, greens: Sequence[State], parents: Sequence[int]) -> torch.Tensor:
        """Add m nodes and return their draft states [m, hidden].

        greens: the green states of the n-grams that end with the nodes' tokens. parents: the number
        of each node's parent, added in an earlier call; -1 for the root, which comes first and
        alone. Nodes are numbered in the order they are added.
        """
        encoder, rows = self._model.encoder, _rows_of(greens)
        if self._pending is not None:  # now nodes follow the last draft states
            last, at = self._pending
            self._slots += range(self._end, self._end + last.shape[1])
            self._put(self._end, encoder.mature(last, at))
        first = self._end
        for slot, parent in enumerate(parents, start=first):
            above = [] if parent < 0 else [*self._sees[parent], self._slots[parent]]
            self._sees.append([*above, slot])
        places = torch.full((1, len(parents)), self.length + depth, device=rows.device)
        self._put(first, encoder.green(rows, places))
        columns = self._held[0][:, :, : self._end], self._held[1][:, :, : self._end]
        sees = self._mask(len(parents)).to(rows.device)
        drafts: torch.Tensor = encoder(rows, places, columns, sees)
        self._pending = drafts, places
        return drafts[0]

    def _mask(self, count: int) -> torch.Tensor:
        """[1, count, columns] bool: what the last `count` nodes see."""
        sees = np.zeros((1, count, self._end), dtype=bool)  # indexing a tensor is slow
        sees[..., : 2 * self.length] = True
        for row, slots in enumerate(self._sees[-count:]):
            sees[0, row, slots] = True
        return torch.from_numpy(sees)

    def _put(self, first: int, columns: Columns, step: int = 1) -> None:
        """Write columns to slots first, first + step, …"""
        self._end = first + step * columns[0].shape[2]
        self._make_room(self._end)
        for held, new in zip(self._held, columns):
            held[:, :, first : self._end : step] = new


class ProgramLevels(CalledLevels):
    """Runs programs over the text's own cache. capacity: see `ModuleLevels`.

    Slot 2n of the cache is the mature (or draft) column of place n, slot 2n + 1 its green one.
    Nodes take the places after the text, in the order they are added.
    """

    _programs: ChimeraPrograms
    per_place = 2

    def __init__(self, programs: ChimeraPrograms, model: ChimeraModel, capacity: int) -> None:
        config, room = model.config, max(capacity, 1) + 64
        shape = 2, 1, config.kv_heads, 2 * room, config.head_size
        super().__init__(programs, torch.zeros(shape, dtype=torch.float32, device="cpu"))
        self._token_list = model.token_list
        self._mature = np.empty(0, dtype=np.float32)
        self._sees: list[list[int]] = []  # by node: its ancestors' slots and its own

    def read(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """See `ModuleLevels.read`."""
        # No torch from here on: after a pass of the target has evicted it from the caches, one
        # operator of torch takes longer than a small program.
        numbers = states.float().numpy()
        self._mature = numbers[-1].copy()  # a view would keep all states of the target
        for first in range(0, len(greens), AT_ONCE):
            self._read(numbers[self.length :], greens[first : first + AT_ONCE])

    def _read(self, matures: Floats, greens: Sequence[State]) -> None:
        count, hidden = len(greens), matures.shape[1]
        end = self.length + count
        self._room_for(end)
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

    def begin(self) -> None:
        """See `ModuleLevels.begin`."""
        self._sees = []

    def grow(
        self, depth: int, greens: Sequence[State], parents: Sequence[int], ranks: int
    ) -> Guesses:
        """See `ModuleLevels.grow`."""
        count, first = len(parents), self.length + len(self._sees)
        self._room_for(first + count)
        for place, parent in enumerate(parents, start=first):
            above = [] if parent < 0 else self._sees[parent]
            self._sees.append([*above, 2 * place, 2 * place + 1])
        position, seen = self.length + depth, self._sees[-count:]

        def see(rows: PassBuffers) -> None:
            rows.positions[:count], rows.count[:count] = position, 2 * self.length
            begin = 0
            for row, slots in enumerate(seen):
                end = begin + len(slots) - 1
                rows.slots[row] = first + row
                # Its own draft state is not known yet.
                rows.extra[begin:end] = [*slots[:-2], slots[-1]]
                rows.begins[row + 1] = begin = end

        program, hidden = self._programs.levels[depth], len(self._mature)
        program.use_cache(self._layers)
        given = program.given(count)
        given[:, hidden:] = self._mature
        for row, green in enumerate(greens):
            given[row, :hidden] = green
        program.run(count, position + 1, see)
        return guesses_of_program(program, count, ranks, self._token_list, self._noise_at(depth))


Levels = ModuleLevels | ProgramLevels
"""What Chimera keeps of one text, and a draft after it."""


def levels_of(model: ChimeraModel, capacity: int = 256) -> Levels:
    """The memory of a new text and drafts after it, as fast as this machine allows."""
    if isinstance(model.programs, ChimeraPrograms):
        return ProgramLevels(model.programs, model, capacity)
    return ModuleLevels(model, capacity)


def encoded(model: ChimeraModel, ngrams: Sequence[Ngram]) -> Sequence[State]:
    """The green states of n-grams, each in its own memory: a view would keep its whole batch."""
    if isinstance(model.programs, ChimeraPrograms):
        return model.programs.encoded(ngrams)
    return [state.clone() for state in model.green(torch.tensor(ngrams, device=model.device))]


def restored(model: ChimeraModel, numbers: torch.Tensor) -> State:
    """Turn numbers [hidden] into a state as `encoded` makes them."""
    return numbers.to(model.device) if model.programs is None else numbers.numpy()


def _rows_of(states: Sequence[State]) -> torch.Tensor:
    """[1, n, hidden]."""
    return torch.stack([torch.as_tensor(state) for state in states])[None].float()
