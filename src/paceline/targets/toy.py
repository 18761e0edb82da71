"""A deterministic model in memory: tests exercise the whole core on it in milliseconds.

Its logits depend only on the last few tokens, so its texts repeat themselves and every drafter has
something to hit. It computes them from its own cache, never from what the caller believes: a wrong
commit or rollback therefore changes the text and is caught.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from paceline.prefix import common_prefix
from paceline.protocols import CAPABILITIES, LAST_STATES, Target
from paceline.records import Path, TargetInfo
from paceline.scores import TokenScores
from paceline.tree import EMPTY, Tree

_KEPT = 4


@cache
def _rows_of(vocab_size: int, seed: int, sharpness: float) -> dict[tuple[int, ...], torch.Tensor]:
    """Logits after these tokens, drawn once for all toys alike."""
    return {}


@dataclass
class _Slot:
    """A text. cached, pending: tokens, the root last. tree: scored last."""

    cached: list[int]
    pending: list[int]
    tree: Tree = EMPTY


class ToyTarget(Target):
    """A random Markov chain as a target.

    vocab_size: number of real tokens; ids beyond it are virtual.
    order: how many of the last tokens the logits depend on.
    sharpness: standard deviation of the logits; larger means lower entropy at temperature 1.
    max_context: most tokens of a text, prompt included; None for no limit.

    passes: number of passes so far. read: prompt tokens read by them.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        vocab_size: int = 16,
        order: int = 2,
        seed: int = 0,
        sharpness: float = 2.0,
        max_context: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.passes = 0
        self.read = 0
        self._order = order
        self._seed = seed
        self._sharpness = sharpness
        self._rows = _rows_of(vocab_size, seed, sharpness)
        self._slots: dict[int, _Slot] = {}
        self._opened = 0
        self._kept: list[list[int]] = []

    def open(self, context: Sequence[int]) -> int:
        known = [*self._kept, *(slot.cached for slot in self._slots.values())]
        shared = max((common_prefix(text, context) for text in known), default=0)
        shared = min(shared, len(context) - 1)
        self._slots[self._opened] = _Slot(list(context[:shared]), list(context[shared:]))
        self._opened += 1
        return self._opened - 1

    def close(self, slot: int) -> None:
        self._kept = [*self._kept, self._slots.pop(slot).cached][-_KEPT:]

    def forget(self) -> None:
        self._kept = []

    def pending(self, slot: int) -> int:
        return max(0, len(self._slots[slot].pending) - 1)

    def score(
        self, trees: Mapping[int, Tree], prefill: Mapping[int, int] | None = None
    ) -> dict[int, torch.Tensor]:
        self.passes += 1
        for slot, most in {**dict.fromkeys(trees, 1 << 30), **(prefill or {})}.items():
            self._read(self._slots[slot], most)
        for slot, tree in trees.items():
            self._slots[slot].tree = tree
        return {slot: self._score_one(self._slots[slot], tree) for slot, tree in trees.items()}

    def commit(self, paths: Mapping[int, Path]) -> None:
        for key, path in paths.items():
            slot = self._slots[key]
            slot.cached += [*slot.pending, *(slot.tree.tokens[node] for node in path.nodes)]
            slot.pending = [path.tokens[-1]]

    def follow(self, slot: int, kept: int, tokens: Sequence[int]) -> TokenScores:
        text = self._slots[slot]
        whole = [*[*text.cached, *text.pending][:kept], *tokens]
        cached = min(kept, len(text.cached), len(whole) - 1)
        text.cached, text.pending = whole[:cached], whole[cached:]
        numbers = self.score({slot: EMPTY})[slot][0].float().numpy()
        text.cached, text.pending = whole, []
        return TokenScores(numbers)

    def describe(self) -> TargetInfo:
        return TargetInfo("ToyTarget", dtype="float32")

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        """See `Target`. Nothing is kept: logits follow from ids, whatever their embeddings."""
        return self.vocab_size

    def keep_states(self, layers: Sequence[int] = (LAST_STATES,)) -> None:
        """See `Target`. Nothing is kept: states follow from the cache."""

    def states(self, slot: int, layers: Sequence[int] = (LAST_STATES,)) -> torch.Tensor:
        """States [cached tokens, vocab_size]: a token's state is the logits after it; layer n's
        output is the same, rotated by n."""
        cached = self._slots[slot].cached
        ends = range(1, len(cached) + 1)
        rows = [self._row(tuple(cached[max(0, end - self._order) : end])) for end in ends]
        found = torch.stack(rows) if rows else torch.zeros(0, self.vocab_size)
        return torch.cat([found.roll(each, dims=1) for each in layers], dim=1)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """One-hot vectors, [..., vocab_size]."""
        return torch.nn.functional.one_hot(tokens, self.vocab_size).float()

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Target`: states are logits already."""
        eye = torch.eye(self.vocab_size)
        weights = eye if tokens is None else eye[tokens]
        return weights, torch.zeros(len(weights))

    def _read(self, slot: _Slot, most: int) -> None:
        count = min(most, len(slot.pending) - 1)
        self.read += count
        slot.cached += slot.pending[:count]
        del slot.pending[:count]

    def _score_one(self, slot: _Slot, tree: Tree) -> torch.Tensor:
        context = [*slot.cached[-self._order :], *slot.pending][-self._order :]
        texts = [
            [*context, *(tree.as_read[step] for step in tree.path_to(node))]
            for node in range(-1, len(tree))
        ]
        return torch.stack([self._row(tuple(text[-self._order :])) for text in texts])

    def _row(self, suffix: tuple[int, ...]) -> torch.Tensor:
        if suffix not in self._rows:
            noise = np.random.default_rng([self._seed, *suffix])
            row = noise.normal(scale=self._sharpness, size=self.vocab_size)
            self._rows[suffix] = torch.from_numpy(row).float()
        return self._rows[suffix]
