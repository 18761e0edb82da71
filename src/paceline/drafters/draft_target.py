"""A draft model seen with the vocabulary of the model it drafts for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, cast

import numpy as np
import torch
from torch.nn.functional import pad

from paceline.chains import ChainFound, ChainRequest
from paceline.protocols import Target
from paceline.scores import TokenScores
from paceline.tree import Tree


def in_vocabulary(target: Target, size: int, known: int) -> Target:
    """`target` with rows of `size` logits, those from `known` on being -inf."""
    if target.vocab_size == size <= known:
        return target
    return cast(Target, _DraftTarget(target, size, min(size, known, target.vocab_size)))


class _DraftTarget:
    """A target whose rows have another model's size, so that both are sampled alike: models of one
    family pad their embeddings. All else is the target's own, `vocab_size` too, where its virtual
    ids begin.

    size: of the rows. known: tokens that both know, at most `size` and the model's own vocabulary.
    """

    def __init__(self, target: Target, size: int, known: int) -> None:
        self._target = target
        self._size = size
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        beyond = self._size - self._known
        return {
            slot: pad(rows[:, : self._known], (0, beyond), value=-inf)
            for slot, rows in self._target.score(trees, prefill).items()
        }

    def follow(self, slot: int, kept: int, tokens: Sequence[int]) -> TokenScores:
        found = self._target.follow(slot, kept, tokens)
        if found.tokens is None:
            return TokenScores(found.numbers[: self._known])
        said = int(np.searchsorted(found.tokens, self._known))
        return TokenScores(found.numbers[:said], found.tokens[:said])

    def generate_chain(
        self, slot: int, kept: int, tokens: Sequence[int], wanted: ChainRequest
    ) -> ChainFound | None:
        wanted = replace(wanted, known=min(wanted.known, self._known))
        return self._target.generate_chain(slot, kept, tokens, wanted)
