"""A program on weights of fewer bits: the same steps on other matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from paceline.kernels.blocks import GROUP, ROUNDED, BlockMatrix, rounded_blocks, rounded_size
from paceline.kernels.memory import WeightMemory
from paceline.kernels.programs.steps import Kind, Lowered, Op, Step

__all__ = ["Rounding"]

_PIECE = 1 << 22  # numbers that are converted to floats at a time
_HEAD_BITS = 8


@dataclass(frozen=True)
class _Product:
    """A matrix of products, and the bits that it is rounded to; 0 if it stays as it is."""

    matrix: BlockMatrix
    bits: int

    @property
    def nbytes(self) -> int:
        """Of the rounded matrix."""
        matrix = self.matrix
        if not self.bits:
            return matrix.nbytes
        return rounded_size(matrix.outputs, matrix.inputs, self.bits)


class Rounding:
    """Rounds the matrices of a program to `bits`, 4 or 8.

    An output head keeps 8 bits: with four, vocabulary scores lose too many right tokens. A matrix
    that would not shrink is shared as it is; norms, biases, and tables of tokens and of positions
    are always shared.

    before, after: bytes of matrices that a pass reads. needed: peak bytes that `program` takes, the
    matrices included.
    """

    def __init__(self, lowered: Lowered, bits: int) -> None:
        self._lowered = lowered
        self._products = _products(lowered, bits)
        sizes = [each.nbytes for each in self._products.values()]
        new = [each.nbytes for each in self._products.values() if each.bits]
        self.before = sum(each.matrix.nbytes for each in self._products.values())
        self.after = sum(sizes)
        self.needed = sum(new) + max(new, default=0)  # one matrix's blocks exist beside its panels

    def program(self) -> Lowered:
        """The steps on rounded matrices, which are made one at a time."""
        memory = WeightMemory()
        made = {key: _rounded(each, memory) for key, each in self._products.items()}
        steps = [_with_matrix(step, made) for step in self._lowered.steps]
        return Lowered(steps, self._lowered.logits, self._lowered.tables)


def _products(lowered: Lowered, bits: int) -> dict[int, _Product]:
    """Products by the identity of their matrices."""
    found: dict[int, _Product] = {}
    for step in lowered.steps:
        if step.op == Op.PRODUCT and step.matrix is not None:
            late = step.out is not None and step.out.kind == Kind.KEPT
            wanted = max(bits, _HEAD_BITS) if late else bits
            rounded = _Product(step.matrix, wanted)
            pays = rounded.nbytes < step.matrix.nbytes
            found[id(step.matrix)] = rounded if pays else _Product(step.matrix, 0)
    return found


def _with_matrix(step: Step, made: Mapping[int, BlockMatrix]) -> Step:
    if step.op != Op.PRODUCT or step.matrix is None:
        return step
    return replace(step, matrix=made[id(step.matrix)])


def _rounded(product: _Product, memory: WeightMemory) -> BlockMatrix:
    matrix, bits = product.matrix, product.bits
    if not bits:
        return matrix
    blocks = torch.empty(product.nbytes, dtype=torch.uint8, device="cpu").view(matrix.outputs, -1)
    step = max(1, _PIECE // matrix.inputs)
    for first in range(0, matrix.outputs, step):
        ids = torch.arange(first, min(first + step, matrix.outputs))
        blocks[first : first + step] = rounded_blocks(matrix.values(ids), bits)
    made = BlockMatrix.pack(ROUNDED[bits], blocks, matrix.inputs + -matrix.inputs % GROUP)
    del blocks
    made.move(memory)
    return made
