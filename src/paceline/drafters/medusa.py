"""Medusa: decoding heads on the model's last hidden state (Cai et al. 2024, arXiv 2401.10774).

From the same state, the i-th head guesses the token i places after the next one, without knowing
the tokens in between. The guesses of all heads make one tree, likeliest paths first: by the heads'
confidence or, as in the paper, by how often guesses of that rank were right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from paceline.drafters.draw_noise import DrawNoise
from paceline.drafters.head_module import HeadWeights
from paceline.drafters.host import Host
from paceline.drafters.medusa_heads import MedusaPrograms
from paceline.drafters.parts import PartsSettings, find_parts
from paceline.drafters.settings import MOST_RANKS, whole
from paceline.drafters.trained_heads import MedusaParts
from paceline.planning.acceptance import unmeasured
from paceline.planning.candidate_tree import likeliest
from paceline.protocols import HIDDEN_STATES, Drafter
from paceline.records import Round, TextStart
from paceline.tree import EMPTY, Tree


@dataclass(frozen=True)
class MedusaSettings(PartsSettings):
    """Settings of `Medusa`, and those of `PartsSettings`.

    ranks: guesses of each head to consider.
    shape: what selects the guesses of the tree: the heads' confidence in this round, or the
    acceptance table next to the weights, which gives every round the same tree (the paper's).
    weights: of the linear layers, see `HeadWeights`.
    """

    kind = MedusaParts

    ranks: int = whole(10, 1, MOST_RANKS)
    shape: Literal["confidence", "table"] = "confidence"
    weights: HeadWeights = "fastest"


class Medusa(Drafter):
    """Drafter with independent heads.

    host: the model that the heads were trained for; it must expose its hidden states.
    settings: see `MedusaSettings`. changes: fields to override, by name.

    Raises UsageError for a setting out of range; ModelError if the heads are missing, damaged, or
    belong to another model.
    """

    requires = frozenset({HIDDEN_STATES})

    def __init__(self, host: Host, settings: MedusaSettings | None = None, **changes: Any) -> None:
        own = replace(settings or MedusaSettings(), **changes)
        found = find_parts(MedusaParts, own.parts, host.fingerprint)
        self.promise = found.promise
        self._heads = found.open(host, own.weights)
        heads = found.config.heads
        self._table = None if own.shape == "confidence" else found.acceptance or unmeasured(heads)
        self._ranks = own.ranks
        self._noise = DrawNoise(self._heads, host.target.vocab_size)
        self._length = 0
        self._state: torch.Tensor | None = None

    def start(self, text: TextStart) -> None:
        """Begin without a state. References are ignored."""
        self._length, self._state = len(text.context), None
        self._noise.begin(text.sampler)

    def stop(self) -> None:
        """Let go of the target's states."""
        self._state = None

    def observe_states(self, states: torch.Tensor) -> None:
        """Take the state of the last token before the root; see `Drafter.observe_states`."""
        known, fits = states.shape[0], 0 < states.shape[0] == self._length - 1
        # The model may be spread over devices.
        self._state = states.narrow(0, known - 1, 1).to(self._heads.device) if fits else None

    def propose(self, budget: int) -> Tree:
        """The likeliest paths over all heads; empty until the model has read the prompt."""
        if self._state is None or budget < 1:
            return EMPTY
        noise = self._noise.rows(self._length, self._heads.config.heads)
        programs = self._heads.programs
        if self._table is None and isinstance(programs, MedusaPrograms):
            return programs.tree(self._state, budget, self._ranks, noise)
        guesses = self._heads.guess(self._state, self._ranks, noise)
        rows: Sequence[Sequence[float]] = guesses.probabilities
        if self._table is not None:
            rows = [row[: len(own)] for row, own in zip(self._table.rows, guesses.tokens)]
        return likeliest(rows, budget).tree(guesses.tokens)

    def observe(self, round: Round) -> None:
        """Count the tokens: the heads themselves learn nothing."""
        self._length += len(round.path.tokens)
