"""Steps of a program, before they are given their places in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

from paceline.kernels.blocks import BlockMatrix

__all__ = [
    "LAST",
    "Function",
    "Join",
    "Kind",
    "Lowered",
    "Op",
    "Operand",
    "Step",
    "Tables",
    "Value",
    "live_steps",
]


LAST = 0
"""As the layer of states: those that the output head reads."""


class Op(IntEnum):
    """`enum pl_op` of native/src/program.h; so below."""

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
    """What a value belongs to: rows of the pass, those that are kept, or positions."""

    ROWS = 0
    KEPT = 1
    PLACE = 2


@dataclass(eq=False)
class Value:
    """Some numbers for each row.

    number: its own. count: of numbers. source: the step that makes it; None of positions.
    """

    number: int
    count: int
    kind: Kind
    source: Step | None = None


@dataclass(frozen=True)
class Operand:
    """Numbers that a step reads: of a value from `at` on, or `data` [period].

    Number i of a row is at place i / each % period.
    """

    period: int
    value: Value | None = None
    data: torch.Tensor | None = None
    at: int = 0
    each: int = 1

    @property
    def whole(self) -> bool:
        """Whether it is all of a value, in its order."""
        return (
            self.value is not None
            and self.at == 0
            and self.each == 1
            and self.period == self.value.count
        )


@dataclass(eq=False)
class Step:
    """`struct pl_step`; see there.

    of: operands, by their places: in, other, third. out: None where it goes to a cache. layer: of the
    cache; of states, the layer that they come out of, from 1 on, or `LAST`. at: numbers of a row of
    the cache of states before these.
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
    at: int = 0

    def reads(self) -> Iterator[Value]:
        """Values that it needs."""
        for operand in self.of:
            if operand.value is not None:
                yield operand.value


class Tables(Protocol):
    """Values by position."""

    def number_of(self, value: Value) -> int:
        """Of the table of a value."""
        ...

    def extend_to(self, positions: int) -> list[torch.Tensor]:
        """Tables [at least so many positions, numbers] by their numbers."""
        ...


@dataclass(frozen=True)
class Lowered:
    """A list of steps. logits: the value that they make. tables: of positions."""

    steps: Sequence[Step]
    logits: Value
    tables: Tables


def live_steps(steps: Sequence[Step], wanted: Value) -> list[Step]:
    """Those that `wanted`, or a cache, comes from."""
    needed = {wanted}
    found = []
    for step in reversed(steps):
        if step.out is None or step.out in needed:
            needed.update(step.reads())
            found.append(step)
    return found[::-1]
