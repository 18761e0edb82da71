"""Medusa's compact heads as two programs: the residual block of all heads on one state, and the
output head on what it makes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.programs.builder import Builder, GivenRows
from paceline.kernels.programs.steps import Function, Join

__all__ = ["MedusaPrograms"]

Floats = NDArray[np.float32]


class MedusaPrograms:
    """block: weights [heads, hidden, hidden] and biases [heads, hidden] as a layer of all heads;
    head: the output head. hidden: numbers of a state."""

    def __init__(self, block: BlockLinear, head: BlockLinear, hidden: int) -> None:
        self._hidden = hidden
        build = Builder(hidden)
        changed = build.product(build.given, block)
        # The state comes again for each head.
        self._blocks = build.program(build.map(changed, Join.PLUS, build.given, Function.SILU))
        build = Builder(hidden)
        self._head = build.program(build.product(build.given, head))

    def run(self, state: Floats) -> GivenRows:
        """[1, hidden] -> the program that has just given logits [heads, outputs]."""
        self._blocks.given(1)[:] = state
        changed = self._blocks.run(1).reshape(-1, self._hidden)
        self._head.given(len(changed))[:] = changed
        self._head.run(len(changed))
        return self._head
