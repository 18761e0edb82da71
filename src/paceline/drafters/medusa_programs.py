"""Medusa's compact heads as two programs: the residual blocks of all heads on one state, and the
output head on their results."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafters.found_trees import FoundTree
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.builder import Builder, GivenRows
from paceline.kernels.programs.steps import Function, Join
from paceline.tree import Tree

__all__ = ["MedusaPrograms"]

Floats = NDArray[np.float32]


_MOST_HEADS = 16  # MOST_HEADS


class MedusaPrograms:
    """Both programs.

    block: weights [heads, hidden, hidden] and biases [heads, hidden] as a layer of all heads.
    head: the output head, for `token_ids` as in `HeadModule`. hidden: size of a state.
    """

    def __init__(
        self,
        block: BlockLinear,
        head: BlockLinear,
        hidden: int,
        token_ids: torch.Tensor | None = None,
    ) -> None:
        self._hidden = hidden
        build = Builder(hidden)
        changed = build.product(build.given, block)
        # The state is repeated for each head.
        self._blocks = build.program(build.map(changed, Join.PLUS, build.given, Function.SILU))
        build = Builder(hidden)
        self._head = build.program(build.product(build.given, head))
        heads = block.out_features // hidden
        self._parts = self._blocks.part(1), self._head.part(heads)
        self._found = FoundTree(head.out_features, token_ids)
        blocks, of_heads = (part.native for part in self._parts)
        self._one = native.Medusa(blocks=blocks, head=of_heads, heads=heads, hidden=hidden)

    def tree(
        self, state: torch.Tensor, budget: int, ranks: int, noise: torch.Tensor | None = None
    ) -> Tree | None:
        """The likeliest paths over all heads, see `candidate_tree.likeliest`, in one call.

        state: float32 [1, hidden]. noise: see `FoundTree.native`. None for more heads than the
        library supports.
        """
        one = self._one
        if one.heads > _MOST_HEADS:
            return None
        one.state, one.guesses = state.data_ptr(), self._found.native(budget, ranks, noise)
        kernels().draft_medusa(ctypes.addressof(one))
        return self._found.tree(one.guesses.nodes)

    def run(self, state: Floats) -> GivenRows:
        """[1, hidden] -> the program that has just computed logits [heads, outputs]."""
        self._blocks.given(1)[:] = state
        changed = self._blocks.run(1).reshape(-1, self._hidden)
        self._head.given(len(changed))[:] = changed
        self._head.run(len(changed))
        return self._head
