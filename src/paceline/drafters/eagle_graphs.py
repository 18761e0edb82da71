"""EAGLE's drafts on a GPU, replayed from recordings.

Calling a level's operators takes longer than running them. So two pieces of work are recorded:
reading the text's new rows with a guess after the root, and growing one level. Shapes and addresses
are fixed: missing rows repeat the last one, and the text's columns are copied to where the
recordings read them, as texts take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike

from paceline.chains import ChainEnd
from paceline.drafters.eagle_levels import ModuleLevels
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.eagle_programs import ProgramLevels
from paceline.drafters.guesses import Guesses, RecordedGuesses, RecordedNoise
from paceline.drafters.level_tree import BeamSettings, TextLevels
from paceline.kernels import cuda_graph
from paceline.kernels.cuda_graph import GraphRecorder
from paceline.kernels.fixed_inputs import FixedInputs
from paceline.planning.draft_length import LONGEST
from paceline.tree import Tree

_MOST_FRESH = 16  # most rows of the text in a draft; a prompt is read by the modules
_LEAST_ROOM = 256


class EagleGraphs:
    """The recordings of `model`, for any text."""

    def __init__(self, model: EagleModel, recorder: GraphRecorder) -> None:
        self.draft = cache(partial(RecordedDraft, model, recorder))


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
        noise = RecordedNoise(model.device, model.outputs)
        # Tokens, places and features of rows; then what the root's row sees.
        rows = [(_MOST_FRESH,)] * 3
        self._text = FixedInputs(rows, [(1, room)], model.device, pinned=True)
        # Tokens, places, slots, parents and numbers of nodes; then what they see.
        nodes = [(beam,)] * 5
        self._level = FixedInputs(nodes, [(beam, room)], model.device, pinned=True)
        self._root, self._nodes = (
            RecordedGuesses(run, ranks, model.token_ids, noise, recorder)
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
        """See `TextLevels.draft`."""
        graphs, settings = cast(EagleGraphs, self._model.programs), self.settings
        first, last = min(self.length, len(states) - 1), len(states)
        self._make_room(last + len(end.least) * settings.beam)
        self._draft = draft = graphs.draft(self.room, settings.beam, settings.ranks)
        draft.columns.copy_(self._held)
        tokens = text[first + 1 : last + 1]
        self._after_root = draft.read(tokens, first, states[first:], self._noise_at(0))
        self._held[..., first:last, :] = draft.columns[..., first:last, :]
        self.length = last
        return super().draft(text, states, budget, end)

    def begin(self) -> Guesses:
        """See `GrownLevels.begin`."""
        self._sees = [[]]
        return self._after_root

    @torch.no_grad()
    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Guesses:
        """See `GrownLevels.grow`."""
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
        model.programs = EagleGraphs(model, recorder)
    if model.programs is None:
        return ModuleLevels(model, settings)
    if isinstance(model.programs, EagleGraphs):
        return GraphLevels(model, settings)
    return ProgramLevels(model, settings)


def _filled(rows: ArrayLike, count: int) -> np.ndarray:
    """The same rows; the last is repeated until there are `count`."""
    given = np.asarray(rows)
    return np.concatenate([given, given[-1:].repeat(count - len(given), axis=0)])
