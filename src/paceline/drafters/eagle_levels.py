"""EAGLE's rows of one text and its drafts: by the modules themselves, by programs or, on a GPU,
replayed from recordings.

There, calling a level's operators takes longer than running them. So two pieces of work are
recorded: reading the text's new rows with a guess after the root, and growing one level. Shapes and
addresses are fixed: missing rows repeat the last one, and the text's columns are copied to where the
recordings read them, as texts take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import ArrayLike

from paceline.chains import ChainEnd
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.eagle_programs import EaglePrograms, ProgramLevels
from paceline.drafters.guesses import Guesses, RecordedGuesses
from paceline.drafters.level_tree import BeamSettings, GrownLevels, TextLevels
from paceline.kernels import cuda_graph
from paceline.kernels.cuda_graph import GraphRecorder
from paceline.kernels.fixed_inputs import FixedInputs
from paceline.planning.draft_length import LONGEST
from paceline.tree import Tree

_MOST_FRESH = 16  # most rows of the text in a recorded draft; a prompt is read by the modules
_LEAST_ROOM = 256


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
        self._sees, self._outputs = [[]], self._root
        return self._guessed(self._root)

    @torch.no_grad()
    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
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


class RecordedDraft:
    """Drafts in tensors that never move.

    columns: keys and values [2, 1, KV heads, room, head size], of a text and of the draft after it.
    """

    def __init__(
        self, model: EagleModel, recorder: GraphRecorder, room: int, beam: int, ranks: int
    ) -> None:
        config, new = model.config, model.feature_norm.new_zeros
        self._model = model
        self.columns = new(2, 1, config.kv_heads, room, config.head_size)
        self._features = new(_MOST_FRESH, model.width)
        self._outputs = new(1 + LONGEST * beam, model.hidden_size)  # of nodes, the root first
        # Tokens, places and features of rows; then what the root's row sees.
        rows = [(_MOST_FRESH,)] * 3
        self._text = FixedInputs(rows, [(1, room)], model.device, pinned=True)
        # Tokens, places, slots, parents and numbers of nodes; then what they see.
        nodes = [(beam,)] * 5
        self._level = FixedInputs(nodes, [(beam, room)], model.device, pinned=True)
        self._root, self._nodes = (
            RecordedGuesses(run, ranks, model, 1, recorder)
            for run in (self._run_text, self._run_level)
        )

    def read(
        self, tokens: Sequence[int], first: int, features: torch.Tensor, noise: torch.Tensor | None
    ) -> Guesses:
        """Guess after the root, the last of these rows of the text.

        first: the place of their first. features: [rows, width], at most `_MOST_FRESH` rows.
        """
        count = len(tokens)
        self._features[:count] = features
        sees = np.arange(self.columns.shape[-2]) < first + count
        rows = range(count)
        places = range(first, first + count)
        self._text.fill([*(_filled(each, _MOST_FRESH) for each in (tokens, places, rows)), sees])
        return self._root.found(noise)

    def grow(
        self, nodes: Sequence[Sequence[int]], sees: ArrayLike, noise: torch.Tensor | None
    ) -> Guesses:
        """Guess after the nodes of a level: their tokens, places, slots, and parents' and own
        numbers. sees: [nodes, room]."""
        beam = len(self._level.tensors[0])
        self._level.fill([_filled(each, beam) for each in (*nodes, sees)])
        return self._nodes.found(noise)

    def _run_text(self) -> torch.Tensor:
        tokens, places, features, sees = self._text.tensors
        words = self._model.embeddings(tokens)
        rows = self._model.rows_of_text(self._features.index_select(0, features), words)
        self._outputs[:1] = self._model.run(self.columns, rows, places, places, sees)
        return self._model.logits(self._outputs[:1])

    def _run_level(self) -> torch.Tensor:
        tokens, places, slots, parents, numbers, sees = self._level.tensors
        words = self._model.embeddings(tokens)
        rows = self._model.rows_of_guesses(self._outputs.index_select(0, parents), words)
        outputs = self._model.run(self.columns, rows, places, slots, sees)
        self._outputs.index_copy_(0, numbers, outputs)
        return self._model.logits(outputs)


class GraphLevels(ModuleLevels):
    """Drafts in recordings; prompts are read by the modules."""

    most_fresh = _MOST_FRESH

    @torch.no_grad()
    def draft(
        self, text: Sequence[int], states: torch.Tensor, budget: int, end: ChainEnd
    ) -> tuple[Tree, int]:
        settings = self.settings
        first, last = min(self.length, len(states) - 1), len(states)
        self._make_room(last + len(end.least) * settings.beam)
        draft: RecordedDraft = self._model.programs(self.room, settings.beam, settings.ranks)
        self._draft = draft
        draft.columns.copy_(self._held)
        tokens = text[first + 1 : last + 1]
        self._after_root = draft.read(tokens, first, states[first:], self._noise_at(0))
        self._held[..., first:last, :] = draft.columns[..., first:last, :]
        self.length = last
        return super().draft(text, states, budget, end)

    def begin(self) -> Guesses:
        self._sees = [[]]
        return self._after_root

    @torch.no_grad()
    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
        count, before, slots = len(parents), len(self._sees), self._placed(parents)
        nodes = tokens, [self._place] * count, slots, parents, range(before, before + count)
        noise = self._noise_at(len(self._sees[-1]))
        found = self._draft.grow(nodes, self._mask(count, self.room), noise)
        return Guesses(found.tokens[:count], found.probabilities[:count])

    def _roomy(self, columns: int) -> int:
        """Few numbers, so that few shapes are recorded."""
        return max(_LEAST_ROOM, 1 << (columns - 1).bit_length())


def levels_of(model: EagleModel, settings: BeamSettings) -> TextLevels:
    """The memory of a new text and drafts after it, as fast as this machine allows."""
    if model.programs is None and (recorder := cuda_graph.recorder_for(model.device)) is not None:
        model.programs = cache(partial(RecordedDraft, model, recorder))  # one for all texts
    if model.programs is None:
        return ModuleLevels(model, settings)
    recorded = not isinstance(model.programs, EaglePrograms)
    return (GraphLevels if recorded else ProgramLevels)(model, settings)


def _filled(rows: ArrayLike, count: int) -> np.ndarray:
    """The same rows; the last is repeated until there are `count`."""
    given = np.asarray(rows)
    return np.concatenate([given, given[-1:].repeat(count - len(given), axis=0)])
