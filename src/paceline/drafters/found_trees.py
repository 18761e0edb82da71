"""Trees that the C library makes from the guesses of heads."""

from __future__ import annotations

import ctypes

import torch

from paceline.kernels.native import signatures as native
from paceline.tree import Tree

__all__ = ["FoundTree"]


class FoundTree:
    """Memory for a tree.

    outputs: columns of logits. token_ids: [outputs] int64, the tokens they stand for; None:
    columns are token ids.
    """

    def __init__(self, outputs: int, token_ids: torch.Tensor | None) -> None:
        self._ids = token_ids  # held for the library
        self._guesses = native.Guesses(
            outputs=outputs, ids=None if token_ids is None else token_ids.data_ptr()
        )
        self._outputs, self._room = outputs, 0

    def native(self, budget: int, ranks: int, noise: torch.Tensor | None = None) -> native.Guesses:
        """What the library should find: at most `budget` nodes, and `ranks` guesses per row.
        noise: float32 [depths, outputs], see `DrawNoise`."""
        one, self._noise = self._guesses, noise  # held for the library
        one.noise, one.heard = (None, 0) if noise is None else (noise.data_ptr(), len(noise))
        one.budget, one.ranks = budget, min(ranks, self._outputs)
        if budget > self._room:
            self._room = budget
            self._tokens, self._parents = ((ctypes.c_int64 * budget)() for _ in range(2))
            self._path_chances = (ctypes.c_double * budget)()
            one.tokens, one.parents = map(ctypes.addressof, (self._tokens, self._parents))
            one.path_chances = ctypes.addressof(self._path_chances)
        return one

    def tree(self, nodes: int) -> Tree:
        """The tree found, of `nodes` nodes."""
        tokens, parents = tuple(self._tokens[:nodes]), tuple(self._parents[:nodes])
        return Tree(tokens, parents, tuple(self._path_chances[:nodes]))
