"""Chimera's drafts, grown level by level by the modules themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.drafters.attention_rows import Columns
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.chimera_programs import ChimeraPrograms, ProgramLevels
from paceline.drafters.guesses import Guesses
from paceline.drafters.level_tree import BeamSettings, GrownLevels, TextLevels
from paceline.drafters.ngram_cache import Ngram, NgramCache, State, last_ngram, ngrams_of


class ModuleLevels(GrownLevels):
    """Runs the modules of `model` one after the other. greens: where green states are kept.

    Slot 2n of the columns is the mature (or draft) one of place n, slot 2n + 1 its green one. Nodes
    take the places after the text, in the order they are added.
    """

    _model: ChimeraModel
    per_place = 2

    def __init__(self, model: ChimeraModel, settings: BeamSettings, greens: NgramCache) -> None:
        super().__init__(model, settings)
        self._greens, self._order = greens, model.config.order
        self._paths: list[Sequence[int]] = []  # by node, the root first: the last tokens up to it

    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        # The root's n-gram, too: all are encoded together.
        ngrams = ngrams_of(text, range(self.length, len(states) + 1), self._order)
        *greens, self._root = self._greens.states(ngrams, self.record)
        self.take(states, greens)
        self._paths = [tuple(text[-self._order :])]

    @torch.no_grad()
    def take(self, states: torch.Tensor, greens: Sequence[State]) -> None:
        """Take over what the target has read. states: [n, hidden] of all n tokens, n >= `length`
        and n >= 1. greens: the green states of those beyond `length`."""
        self._mature = states[-1].clone()  # a view would keep all states of the target
        if not greens:
            return
        encoder, matures = self._model.encoder, states[None, self.length :].float()
        end = self.length + len(greens)
        places = torch.arange(self.length, end, device=matures.device)[None]
        self._put(2 * self.length, encoder.mature(matures, places))
        self._put(2 * self.length + 1, encoder.green(_rows_of(greens, matures.device), places))
        self.length = end

    def begin(self) -> Guesses:
        self._paths = self._paths[:1]
        return self._guessed(0, [self._root], [-1])

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
        paths = [(*self._paths[above], token) for above, token in zip(parents, tokens, strict=True)]
        self._paths += paths
        ngrams = [last_ngram(path, self._order) for path in paths]
        depth = len(paths[0]) - len(self._paths[0])
        return self._guessed(depth, self._greens.states(ngrams, self.record), parents)

    @torch.no_grad()
    def _guessed(self, depth: int, greens: Sequence[State], parents: Sequence[int]) -> Guesses:
        drafts = self.drafts(depth, greens, parents)
        return self._likeliest(self._model.logits(depth, self._mature, drafts), depth)

    @torch.no_grad()
    def drafts(self, depth: int, greens: Sequence[State], parents: Sequence[int]) -> torch.Tensor:
        """Add the m nodes of the next level, and return their draft states [m, hidden]. Depth 0
        begins a draft; its one node is the root.

        greens: the green states of the n-grams that end with the nodes' tokens. parents: the number
        of each node's parent, added in an earlier call; -1 for the root.
        """
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


def levels_of(model: ChimeraModel, settings: BeamSettings, greens: NgramCache) -> TextLevels:
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
