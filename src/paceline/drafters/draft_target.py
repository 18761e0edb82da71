"""A draft model seen with the vocabulary of the model that it drafts for."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch.nn.functional import pad

from paceline.protocols import Target, add_virtual_tokens, states_of
from paceline.records import Path
from paceline.tree import Tree

__all__ = ["DraftTarget", "in_vocabulary"]


def in_vocabulary(target: Target, size: int, known: int) -> Target:
    """`target` with rows of `size` logits, of which those from `known` on are -inf."""
    if target.vocab_size == size <= known:
        return target
    return DraftTarget(target, size, min(size, known, target.vocab_size))


class DraftTarget:
    """A target whose rows have another model's size, so that both can be drawn from alike.

    Models of one family pad their embeddings to different sizes: what lies beyond the tokens that
    both know cannot be said. `vocab_size` stays the model's own, where its virtual ids begin.

    size: of the rows. known: tokens that both know, at most `size` and the model's own vocabulary.
    """

    def __init__(self, target: Target, size: int, known: int) -> None:
        self.vocab_size = target.vocab_size
        self.max_context = target.max_context
        self.capabilities = target.capabilities
        self._target = target
        self._size = size
        self._known = known

    def sync(self, contexts: Sequence[Sequence[int]]) -> None:
        """See `Target.sync`."""
        self._target.sync(contexts)

    def score(self, trees: Sequence[Tree]) -> list[torch.Tensor]:
        """See `Target.score`; logits [len(tree) + 1, size]."""
        beyond = self._size - self._known
        return [
            pad(rows[:, : self._known], (0, beyond), value=-inf)
            for rows in self._target.score(trees)
        ]

    def commit(self, paths: Sequence[Path]) -> None:
        """See `Target.commit`."""
        self._target.commit(paths)

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        """See `TakesVirtualTokens`."""
        return add_virtual_tokens(self._target, embeddings)

    def keep_states(self) -> None:
        """See `ShowsStates`."""
        states_of(self._target).keep_states()

    def states(self, text: int) -> torch.Tensor:
        """See `ShowsStates`."""
        return states_of(self._target).states(text)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `ShowsStates`."""
        return states_of(self._target).embed(tokens)

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ShowsStates`."""
        return states_of(self._target).output_head(tokens)
