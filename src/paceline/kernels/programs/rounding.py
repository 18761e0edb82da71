"""A program on weights of fewer bits: the same steps on other matrices."""

from __future__ import annotations

from dataclasses import replace

from paceline.kernels.blocks import BlockMatrix, quantised, rounded_size
from paceline.kernels.memory import WeightMemory
from paceline.kernels.programs.steps import Kind, Lowered, Op, Step

_HEAD_BITS = 8


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
        self._bits = _bits_by_matrix(lowered, bits)
        sizes = {matrix: _size(matrix, of) for matrix, of in self._bits.items()}
        new = [sizes[matrix] for matrix, of in self._bits.items() if of]
        self.before = sum(matrix.nbytes for matrix in sizes)
        self.after = sum(sizes.values())
        self.needed = sum(new) + max(new, default=0)  # one matrix's blocks exist beside its panels

    def program(self) -> Lowered:
        """The steps on rounded matrices, which are made one at a time."""
        memory, made = WeightMemory(), dict[BlockMatrix | None, BlockMatrix]()
        for matrix, bits in self._bits.items():
            if bits:
                made[matrix] = quantised(matrix, bits)
                made[matrix].move(memory)

        def on_rounded(step: Step) -> Step:
            rounded = made.get(step.matrix) if step.op == Op.PRODUCT else None
            return step if rounded is None else replace(step, matrix=rounded)

        return replace(self._lowered, steps=[*map(on_rounded, self._lowered.steps)])


def _bits_by_matrix(lowered: Lowered, bits: int) -> dict[BlockMatrix, int]:
    """What the matrices of products are rounded to; 0 if they stay as they are."""
    found: dict[BlockMatrix, int] = {}
    for step in lowered.steps:
        if step.op == Op.PRODUCT and step.matrix is not None:
            late = step.out is not None and step.out.kind == Kind.KEPT
            wanted = max(bits, _HEAD_BITS) if late else bits
            pays = _size(step.matrix, wanted) < step.matrix.nbytes
            found[step.matrix] = wanted if pays else 0
    return found


def _size(matrix: BlockMatrix, bits: int) -> int:
    """Bytes of a matrix, rounded."""
    return rounded_size(matrix.outputs, matrix.inputs, bits) if bits else matrix.nbytes
