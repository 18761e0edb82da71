"""Steps of a program, before they have places in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

from paceline.kernels.blocks import BlockMatrix
from paceline.kernels.stand_in import LinearStandIn

OTHER = 1 << 24
"""PL_OTHER: in an order, places beyond it are in the second operand."""


class Op(IntEnum):
    """`enum pl_op` of native/src/program.h; likewise below."""

    EMBED = 0
    GIVEN = 1
    MAP = 2
    MEAN = 3
    RMS_NORM = 4
    LAYER_NORM = 5
    ROTATE = 6
    GATHER = 7
    PRODUCT = 8
    STORE = 9
    ATTEND = 10
    STATES = 11
    SELECT = 12
    SCATTER = 13


class Function(IntEnum):
    """`enum pl_function`."""

    SAME = 0
    SILU = 1
    GELU = 2
    GELU_TANH = 3
    RELU = 4
    TANH = 5
    SIGMOID = 6
    SQUARE = 7
    CUBE = 8
    RSQRT = 9


class Join(IntEnum):
    """`enum pl_join`."""

    ALONE = 0
    PLUS = 1
    MINUS = 2
    TIMES = 3
    OVER = 4
    FROM = 5
    UNDER = 6


class Kind(IntEnum):
    """What a value belongs to: rows of the pass, kept rows, or positions."""

    ROWS = 0
    KEPT = 1
    PLACE = 2


@dataclass(eq=False)
class Value:
    """Some numbers for each row. number: identifies it. count: of numbers."""

    number: int
    count: int
    kind: Kind


@dataclass(frozen=True)
class Operand:
    """Numbers that a step reads: from `at` on in a value, or `data` [period].

    Number i of a row is at place i / each % period.
    """

    period: int
    value: Value | None = None
    data: torch.Tensor | None = None
    at: int = 0
    each: int = 1

    @property
    def whole(self) -> bool:
        """Whether it is all of a value, in order."""
        of = self.value
        return of is not None and (self.at, self.each, self.period) == (0, 1, of.count)

    @classmethod
    def all_of(cls, value: Value) -> Operand:
        """The whole value."""
        return cls(value.count, value)


@dataclass(eq=False)
class Step:
    """`struct pl_step`; see there.

    of: the operands in, other, third, in this order. out: None if the output goes to a cache.
    matrix, linear: of a product, one of the two; a linear layer is for programs of torch's operators.
    layer: of the cache; for states, the layer they come from, counted from 1; 0 for those that the
    output head reads. at: where these states begin in a row of their cache.
    """

    op: Op
    count: int
    out: Value | None = None
    of: Sequence[Operand] = ()
    function: Function = Function.SAME
    join: Join = Join.ALONE
    layer: int = 0
    seen: int = 0
    size: int = 0
    heads: int = 0
    key_heads: int = 0
    number: float = 0.0
    cap: float = 0.0
    order: torch.Tensor | None = None
    halves: bool = False
    matrix: BlockMatrix | None = None
    table: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    linear: LinearStandIn | None = None
    at: int = 0

    def reads(self) -> Iterator[Value]:
        """Values that it reads."""
        for operand in self.of:
            if operand.value is not None:
                yield operand.value


class Tables(Protocol):
    """Tables of values by position. values: what they hold, in order."""

    values: Sequence[Value]

    def extend_to(self, positions: int) -> list[torch.Tensor]:
        """Tables [at least `positions`, numbers] of the values."""
        ...


@dataclass(frozen=True)
class Lowered:
    """A list of steps. logits: the value that they compute. tables: of positions."""

    steps: Sequence[Step]
    logits: Value
    tables: Tables


def readers_of(steps: Iterable[Step]) -> dict[Value | None, list[Step]]:
    """The steps that read each value, in order."""
    found: dict[Value | None, list[Step]] = {}
    for step in steps:
        for value in dict.fromkeys(step.reads()):
            found.setdefault(value, []).append(step)
    return found


def live_steps(steps: Sequence[Step], wanted: Value) -> list[Step]:
    """Steps that `wanted` or a cache depends on."""
    needed = {wanted}
    found = []
    for step in reversed(steps):
        if step.out is None or step.out in needed:
            needed.update(step.reads())
            found.append(step)
    return found[::-1]
