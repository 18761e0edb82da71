"""Chimera's drafts, grown level by level: by the modules themselves, or as programs in a few calls.

On a CPU a level is one call of the C library and a search for the likeliest tokens. Module by
module, calling torch's operators takes longer than their computation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from paceline.drafters.attention_rows import Columns
from paceline.drafters.called_levels import CalledLevels
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.chimera_programs import AT_ONCE, ChimeraPrograms
from paceline.drafters.guesses import Guesses
from paceline.drafters.level_tree import BeamSettings, TextLevels
from paceline.drafters.ngram_cache import Ngram, NgramCache, State, last_ngram


class Levels(TextLevels):
    """What Chimera keeps of one text, and a draft after it. greens: where green states are kept.

    Slot 2n of the columns is the mature (or draft) one of place n, slot 2n + 1 its green one. Nodes
    take the places after the text, in the order they are added.
    """

    _model: ChimeraModel
    per_place = 2

    def __init__(self, model: ChimeraModel, settings: BeamSettings, greens: NgramCache) -> None:
        super().__init__(model, settings)
        self._greens = greens
        self._root: Sequence[State] = ()  # the root's green state
        self._paths: list[Sequence[int]] = []  # by node, the root first: the last tokens up to it

    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        """See `TextLevels.read`."""
        order = self._model.config.order
        ends = range(self.length + 1, len(states) + 2)  # the root's, too: encoded together
        greens = self._states([text[max(0, end - order) : end] for end in ends])
        self.take(states, greens[:-1])
        self._root, self._paths = greens[-1:], [tuple(text[-order:])]

    def begin(self) -> Guesses:
        """See `TextLevels.begin`."""
        self._paths = self._paths[:1]
        return self.guess(0, self._root, [-1])

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
        """See `TextLevels.grow`."""
        paths = [(*self._paths[above], token) for above, token in zip(parents, tokens, strict=True)]
        self._paths += paths
        depth = len(paths[0]) - len(self._paths[0])
        return self.guess(depth, self._states(paths), parents)

    def _states(self, paths: Sequence[Sequence[int]]) -> list[State]:
        """The green states of the n-grams that paths end with."""
        order = self._model.config.order
        return self._greens.states([last_ngram(path, order) for path in paths], self.record)

    @abstractmethod
    def take(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """Take over what the target has read. states: [n, hidden] of all n tokens, n >= `length`
        and n >= 1. greens: the green states of those beyond `length`."""

    @abstractmethod
    def guess(self, depth: int, greens: Sequence[State], parents: Sequence[int]) -> Guesses:
        """Add the m nodes of the next level, and guess after each. Depth 0 begins a draft; its one
        node is the root.

        greens: the green states of the n-grams that end with the nodes' tokens. parents: the number
        of each node's parent, added in an earlier call; -1 for the root, which comes first and
        alone. Nodes are numbered in the order they are added.
        """


class ModuleLevels(Levels):
    """Runs the modules of `model` one after the other."""

    @torch.no_grad()
    def take(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """See `Levels.take`."""
        self._mature = states[-1].clone()  # a view would keep all states of the target
        if not greens:
            return
        encoder, matures = self._model.encoder, states[None, self.length :].float()
        end = self.length + len(greens)
        places = torch.arange(self.length, end, device=matures.device)[None]
        self._put(2 * self.length, encoder.mature(matures, places))
        self._put(2 * self.length + 1, encoder.green(_rows_of(greens, matures.device), places))
        self.length = end

    @torch.no_grad()
    def guess(self, depth: int, greens: Sequence[State], parents: Sequence[int]) -> Guesses:
        """See `Levels.guess`."""
        drafts = self.drafts(depth, greens, parents)
        return self._likeliest(self._model.logits(depth, self._mature, drafts), depth)

    @torch.no_grad()
    def drafts(self, depth: int, greens: Sequence[State], parents: Sequence[int]) -> torch.Tensor:
        """Add m nodes, as `guess` does, and return their draft states [m, hidden]."""
        self._sees = self._sees if depth else []
        slots, encoder = self._placed(parents), self._model.encoder
        rows = _rows_of(greens, self._held.device)
        places = torch.full((1, len(slots)), self.length + depth, device=rows.device)
        self._put(2 * slots.start + 1, encoder.green(rows, places))
        mask = self._mask(len(slots), 2 * slots.stop)
        mask[range(len(slots)), 2 * np.array(slots)] = False  # their own draft states come last
        sees = torch.from_numpy(mask)[None].to(rows.device)
        keys, values = self._held[..., : 2 * slots.stop, :]
        drafts: torch.Tensor = encoder(rows, places, (keys, values), sees)
        if depth + 1 < self._model.config.heads:  # nobody sees those of the last level
            self._put(2 * slots.start, encoder.mature(drafts, places))
        return drafts[0]

    def _put(self, first: int, columns: Columns) -> None:
        """Write columns to every other slot from `first` on."""
        end = first + 2 * columns[0].shape[2]
        self._make_room(end)
        for held, new in zip(self._held, columns):
            held[:, :, first:end:2] = new


class ProgramLevels(CalledLevels, Levels):
    """Runs programs over the text's own cache."""

    _programs: ChimeraPrograms

    def take(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """See `Levels.take`."""
        # No torch from here on: after a pass of the target has evicted it from the caches, one
        # operator of torch takes longer than a small program.
        numbers = states.float().numpy()
        self._mature = numbers[-1].copy()  # a view would keep all states of the target
        for first in range(0, len(greens), AT_ONCE):
            some = np.stack(greens[first : first + AT_ONCE])
            slots = range(self.length, self.length + len(some))
            self._run(self._programs.read, [numbers[slots.start : slots.stop], some], slots)
            self.length = slots.stop

    def guess(self, depth: int, greens: Sequence[State], parents: Sequence[int]) -> Guesses:
        """See `Levels.guess`."""
        self._sees = self._sees if depth else []
        slots, program = self._placed(parents), self._programs.levels[depth]
        numbers = [np.stack(greens), np.tile(self._mature, (len(slots), 1))]
        # Their own draft states are not known yet.
        seen = [[*own[:-2], own[-1]] for own in self._sees[-len(slots) :]]
        self._run(program, numbers, slots, seen)
        return self._likeliest_of(program, len(slots), depth)


def levels_of(model: ChimeraModel, settings: BeamSettings, greens: NgramCache) -> Levels:
    """The memory of a new text and drafts after it, as fast as this machine allows."""
    kind = ModuleLevels if model.programs is None else ProgramLevels
    return kind(model, settings, greens)


def encoded(model: ChimeraModel, ngrams: Sequence[Ngram]) -> Sequence[State]:
    """The green states of n-grams, each in its own memory: a view would keep its whole batch."""
    if isinstance(model.programs, ChimeraPrograms):
        return model.programs.encoded(ngrams)
    return [state.clone() for state in model.green(torch.tensor(ngrams, device=model.device))]


def _rows_of(states: Sequence[State], device: torch.device) -> torch.Tensor:
    """[1, n, hidden]."""
    rows = [torch.as_tensor(state, device=device) for state in states]  # from a file: on the CPU
    return torch.stack(rows)[None].float()
