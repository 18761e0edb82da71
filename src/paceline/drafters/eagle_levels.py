"""EAGLE's rows of one text and its drafts, by the modules themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.guesses import Guesses
from paceline.drafters.level_tree import GrownLevels


class ModuleLevels(GrownLevels):
    """Runs the modules of `model`.

    Each place of the text but the first has a row; column i is that of place i + 1. Rows of guesses
    come after these. The text has `length` rows.
    """

    _model: EagleModel
    # Outputs [n, hidden] of the root, and of all nodes.
    _root: torch.Tensor
    _outputs: torch.Tensor
    # A row reads the token after its feature. So the root's is always read again: a draft needs its
    # output, which is not kept.
    ahead = 1

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

    def begin(self) -> Guesses:
        """See `GrownLevels.begin`."""
        self._sees, self._outputs = [[]], self._root
        return self._guessed(self._root)

    @torch.no_grad()
    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
        """See `GrownLevels.grow`."""
        device = self._outputs.device
        words = self._model.embeddings(torch.tensor(tokens, device=device))
        rows = self._model.rows_of_guesses(self._outputs[list(parents)], words)
        slots = self._placed(parents)
        places = torch.full((len(slots),), self._place, device=device)
        sees = torch.from_numpy(self._mask(len(slots), slots.stop)).to(device)
        self._make_room(slots.stop)
        held, own = self._held[..., : slots.stop, :], torch.tensor(slots, device=device)
        outputs = self._model.run(held, rows, places, own, sees)
        self._outputs = torch.cat([self._outputs, outputs])
        return self._guessed(outputs)

    @property
    def _place(self) -> int:
        """That of all nodes of the last level."""
        return self.length - 1 + len(self._sees[-1])

    @torch.no_grad()
    def _guessed(self, outputs: torch.Tensor) -> Guesses:
        """Guesses after the last nodes, which have these outputs."""
        return self._likeliest(self._model.logits(outputs), len(self._sees[-1]))
