"""EAGLE's rows of one text and its drafts: by the modules themselves, or as programs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paceline.drafters.called_levels import CalledLevels, Floats
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.eagle_programs import AT_ONCE, EaglePrograms
from paceline.drafters.guesses import Guesses
from paceline.drafters.level_tree import BeamSettings, TextLevels
from paceline.kernels.programs.builder import GivenRows


class Levels(TextLevels):
    """Columns of one text, and of a draft after it.

    Each place of the text but the first has a row; column i is that of place i + 1. Rows of guesses
    come after these. The text has `length` rows.
    """

    _model: EagleModel
    # Outputs [n, hidden] of the root, and of all nodes.
    _root: Any
    _outputs: Any
    # A row reads the token after its feature. So the root's is always read again: a draft needs its
    # output, which is not kept.
    ahead = 1

    def begin(self) -> Guesses:
        """See `TextLevels.begin`."""
        self._sees, self._outputs = [[]], self._root
        return self._guessed(self._root)

    @abstractmethod
    def _guessed(self, outputs: Any) -> Guesses:
        """Guesses after the last nodes, which have these outputs."""


class ModuleLevels(Levels):
    """Runs the modules of `model`."""

    @torch.no_grad()
    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        """See `TextLevels.read`."""
        first, end = self.length, len(states)
        if first == end:
            return
        tokens = torch.tensor(text[first + 1 : end + 1], device=states.device)
        words = self._model.embeddings(tokens)
        rows = self._model.rows_of_text(states[first:].float(), words)
        places = torch.arange(first, end, device=states.device)
        self._make_room(end)
        # Nobody needs the outputs of the rows before the last.
        sees = torch.ones(1, end, dtype=torch.bool, device=states.device)
        self._root = self._model.run(self._held[..., :end, :], rows, places, places, sees)
        self.length = end

    @torch.no_grad()
    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
        """See `TextLevels.grow`."""
        device = self._outputs.device
        words = self._model.embeddings(torch.tensor(tokens, device=device))
        rows = self._model.rows_of_guesses(self._outputs[list(parents)], words)
        slots = self._placed(parents)
        places = torch.tensor(self._places(self._sees[-len(parents) :]), device=device)
        sees = torch.from_numpy(self._mask(len(parents), slots.stop)).to(device)
        self._make_room(slots.stop)
        held, own = self._held[..., : slots.stop, :], torch.tensor(slots, device=device)
        outputs = self._model.run(held, rows, places, own, sees)
        self._outputs = torch.cat([self._outputs, outputs])
        return self._guessed(outputs)

    @torch.no_grad()
    def _guessed(self, outputs: Any) -> Guesses:
        return self._likeliest(self._model.logits(outputs), len(self._sees[-1]))


class ProgramLevels(CalledLevels, Levels):
    """Runs programs over the text's own cache."""

    _programs: EaglePrograms

    def __init__(self, model: EagleModel, settings: BeamSettings) -> None:
        super().__init__(model, settings)
        self._root = np.zeros((1, model.hidden_size), dtype=np.float32)

    def read(self, text: Sequence[int], states: torch.Tensor) -> None:
        """See `TextLevels.read`."""
        last = len(states) - 1
        while self.length < last:  # nobody needs the outputs of these rows
            self._run_rows(self._programs.store, text, states[: min(self.length + AT_ONCE, last)])
        if self.length == last:
            self._root[:] = self._run_rows(self._programs.read, text, states)

    def _run_rows(self, program: GivenRows, text: Sequence[int], states: torch.Tensor) -> Floats:
        """Run a program over the rows of the text that come after its first `length`."""
        slots = range(self.length, len(states))
        words = self._words(text[slots.start + 1 : slots.stop + 1])
        self.length = slots.stop
        return self._run(program, [states[slots.start :].float().numpy(), words], slots)

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
        """See `TextLevels.grow`."""
        slots, numbers = self._placed(parents), [self._outputs[list(parents)], self._words(tokens)]
        seen = self._sees[-len(parents) :]
        outputs = self._run(self._programs.grow, numbers, slots, seen)
        self._outputs = np.concatenate([self._outputs, outputs])
        return self._guessed(outputs)

    def _guessed(self, outputs: Any) -> Guesses:
        head, count = self._programs.head, len(outputs)
        head.given(count)[:] = outputs
        head.run(count)
        return self._likeliest_of(head, count, len(self._sees[-1]))

    def _words(self, tokens: Sequence[int]) -> Floats:
        words = self._model.embeddings(torch.tensor(tokens, device="cpu"))
        found: Floats = words.float().numpy()
        return found

    def _point(self, one: Any) -> None:
        super()._point(one)
        one.root = self._root.ctypes.data
