"""A deterministic model in memory: the whole core is tested on it in milliseconds.

Its logits depend on the last few tokens only, so its texts repeat themselves and every drafter has
something to hit. It computes them from what it believes is in its own cache, never from what the
caller believes: a wrong commit or rollback therefore changes the text and is caught.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.protocols import HIDDEN_STATES, VIRTUAL_TOKENS
from paceline.records import Path
from paceline.tree import EMPTY, Tree

__all__ = ["ToyTarget"]


class ToyTarget:
    """A random Markov chain as a target.

    vocab_size: number of real tokens; ids beyond it are virtual.
    order: how many of the last tokens the logits depend on.
    sharpness: standard deviation of the logits; larger means less entropy at temperature 1.
    max_context: most tokens of a text, prompt included; None for no limit.
    """

    capabilities = frozenset({VIRTUAL_TOKENS, HIDDEN_STATES})

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
        self._order = order
        self._seed = seed
        self._sharpness = sharpness
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}
        self._cached: list[list[int]] = []
        self._roots: list[int] = []
        self._trees: list[Tree] = []

    def sync(self, contexts: Sequence[Sequence[int]]) -> None:
        """Hold these texts. See `Target.sync`."""
        self._cached = [list(context[:-1]) for context in contexts]
        self._roots = [context[-1] for context in contexts]
        self._trees = [EMPTY] * len(contexts)

    def score(self, trees: Sequence[Tree]) -> list[torch.Tensor]:
        """Logits [len(tree) + 1, vocab_size] per tree. See `Target.score`."""
        if len(trees) != len(self._cached):
            raise ValueError(f"{len(trees)} trees for {len(self._cached)} synced texts")
        self._trees = list(trees)
        self.passes += 1
        return [
            self._score_one([*cached, root], tree)
            for cached, root, tree in zip(self._cached, self._roots, trees, strict=True)
        ]

    def commit(self, paths: Sequence[Path]) -> None:
        """Keep the accepted nodes. See `Target.commit`."""
        for slot, (path, tree) in enumerate(zip(paths, self._trees, strict=True)):
            accepted = [tree.tokens[node] for node in path.nodes]
            self._cached[slot] += [self._roots[slot], *accepted]
            self._roots[slot] = path.tokens[-1]

    def add_virtual_tokens(self, embeddings: torch.Tensor) -> int:
        """See `TakesVirtualTokens`. Every id has logits of its own here, whatever its embedding
        is, so there is nothing to keep."""
        return self.vocab_size

    def keep_states(self) -> None:
        """See `ShowsStates`. States can be told from the cache, so there is nothing to keep."""

    def states(self, text: int) -> torch.Tensor:
        """[cached tokens, vocab_size]: a token's state is the logits behind it."""
        cached = self._cached[text]
        ends = range(1, len(cached) + 1)
        rows = [self._row(tuple(cached[max(0, end - self._order) : end])) for end in ends]
        return torch.stack(rows) if rows else torch.zeros(0, self.vocab_size)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[..., vocab_size]: a one at the token's place."""
        return torch.nn.functional.one_hot(tokens, self.vocab_size).float()

    def output_head(self, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ShowsStates.output_head`: states are logits already."""
        eye = torch.eye(self.vocab_size)
        weights = eye if tokens is None else eye[tokens]
        return weights, torch.zeros(len(weights))

    def _score_one(self, context: Sequence[int], tree: Tree) -> torch.Tensor:
        texts = [
            [*context, *(tree.tokens[step] for step in tree.path_to(node))]
            for node in range(-1, len(tree))
        ]
        return torch.stack([self._row(tuple(text[-self._order :])) for text in texts])

    def _row(self, suffix: tuple[int, ...]) -> torch.Tensor:
        if suffix not in self._rows:
            noise = np.random.default_rng([self._seed, *suffix])
            row = noise.normal(scale=self._sharpness, size=self.vocab_size)
            self._rows[suffix] = torch.from_numpy(row).float()
        return self._rows[suffix]
