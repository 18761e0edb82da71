"""Build programs step by step, for our own modules, whose rows begin as given numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.likeliest import likeliest
from paceline.kernels.native import signatures as native
from paceline.kernels.programs.program import CacheLayer, PassBuffers, Program
from paceline.kernels.programs.steps import (
    OTHER,
    Function,
    Join,
    Kind,
    Lowered,
    Op,
    Operand,
    Step,
    Value,
)
from paceline.kernels.stand_in import stacked_biases

_GRAIN = 256
_FEW = 8  # rows

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Columns:
    """Heads of keys and values. layer: of the cache. heads, size: the same for keys and values."""

    layer: int
    heads: int
    size: int


class Rotary:
    """Tables of cosines and sines [positions, size], for heads whose halves are rotated.

    base: of the angles.
    """

    def __init__(self, size: int, base: float) -> None:
        self.size = size
        self.cosines = Value(-1, size, Kind.PLACE)
        self.sines = Value(-2, size, Kind.PLACE)
        self.values: Sequence[Value] = (self.cosines, self.sines)
        steps = torch.arange(size // 2, dtype=torch.float32, device="cpu")
        self._speeds = base ** (-steps / (size // 2))
        self._tables: list[torch.Tensor] = []

    def extend_to(self, positions: int) -> list[torch.Tensor]:
        """See `Tables`."""
        tables = self._tables  # threads share them: another one may replace them meanwhile
        if not tables or len(tables[0]) < positions:
            places = torch.arange(-(-positions // _GRAIN) * _GRAIN, device="cpu")
            angles = places[:, None] * self._speeds.repeat(2)
            self._tables = tables = [angles.cos(), angles.sin()]
        return tables


class Builder:
    """Collects steps; every row begins as `width` given numbers.

    rotary: for `turned`; without it, a program has no positions.
    """

    def __init__(self, width: int, rotary: Rotary | None = None) -> None:
        self._rotary = rotary or Rotary(2, 1.0)
        self._steps: list[Step] = []
        self.given = self._made(Op.GIVEN, width)

    def part(self, of: Operand, at: int, count: int) -> Operand:
        """`count` numbers of a whole value, from `at` on."""
        return Operand(count, of.value, None, at)

    def product(self, rows: Operand, layer: BlockLinear) -> Operand:
        """Rows x the layer's matrix, plus its bias."""
        return self._made(
            Op.PRODUCT,
            layer.out_features,
            rows,
            size=layer.in_features,
            matrix=layer.matrix,
            bias=layer.bias,
        )

    def normal(self, rows: Operand, scale: torch.Tensor, eps: float) -> Operand:
        """RMSNorm with this scale [numbers of a row]."""
        weight = Operand(len(scale), data=scale.detach().float().contiguous())
        return self._made(Op.RMS_NORM, rows.period, rows, weight, size=rows.period, number=eps)

    def map(
        self, rows: Operand, join: Join, other: Operand, function: Function = Function.SAME
    ) -> Operand:
        """Function(rows), joined with `other`, whose numbers repeat if they are fewer."""
        return self._made(Op.MAP, rows.period, rows, other, function=function, join=join)

    def beside(self, one: Operand, other: Operand) -> Operand:
        """Both, concatenated."""
        own, others = (torch.arange(1, 1 + n.period, device="cpu") for n in (one, other))
        joined = torch.cat([own, OTHER + others]).int()
        return self._made(Op.GATHER, len(joined), one, other, order=joined)

    def turned(self, heads: Operand) -> Operand:
        """Heads with rotary positions applied."""
        size = self._rotary.size
        tables = Operand(size, self._rotary.cosines), Operand(size, self._rotary.sines)
        return self._made(Op.ROTATE, heads.period, heads, *tables, size=size, halves=True)

    def store(self, keys: Operand, values: Operand, to: Columns) -> None:
        """Write keys and values to the rows' slots in a layer of the cache."""
        of, size = (keys, values), to.size
        self._steps.append(
            Step(Op.STORE, size, None, of, layer=to.layer, size=size, key_heads=to.heads)
        )

    def attended(self, queries: Operand, to: Columns) -> Operand:
        """Attention of queries over the slots that their rows see."""
        return self._made(
            Op.ATTEND,
            queries.period,
            queries,
            layer=to.layer,
            size=to.size,
            heads=queries.period // to.size,
            key_heads=to.heads,
            number=to.size**-0.5,
        )

    def gated(self, rows: Operand, gates: BlockLinear, down: BlockLinear) -> Operand:
        """A gated feed-forward. gates: the gate and up projections, their outputs side by side."""
        both, size = self.product(rows, gates), down.in_features
        gate, up = self.part(both, 0, size), self.part(both, size, size)
        return self.product(self.map(gate, Join.TIMES, up, Function.SILU), down)

    def program(self, out: Operand | None = None) -> GivenRows:
        """The program. out: its output, the last product; None if it only stores."""
        if out is None:
            one = self.part(self.given, 0, 1)
            out = self.map(one, Join.PLUS, one)
        if out.value is None:
            raise ValueError("a program needs an output")
        return GivenRows(Lowered(self._steps, out.value, self._rotary), self.given.period)

    def _made(self, op: Op, count: int, *of: Operand, **others: Any) -> Operand:
        value = Value(len(self._steps), count, Kind.ROWS)
        self._steps.append(Step(op, count, value, of, **others))
        return Operand.all_of(value)


@dataclass(frozen=True)
class Part:
    """A program with its own memory for some rows, one of several that run in one call.

    held: the memory and the program, kept alive.
    """

    native: native.Part
    held: Sequence[object]


class GivenRows:
    """A program over rows of `width` given numbers."""

    def __init__(self, lowered: Lowered, width: int) -> None:
        self._program = Program(lowered)
        self._width = width
        self._cache: Sequence[CacheLayer] | None = None
        self._resize(_FEW)

    def use_cache(self, layers: Sequence[CacheLayer]) -> None:
        """Set where the next passes find keys and values."""
        if layers is not self._cache:
            self._program.use_cache(layers)
            self._cache = layers

    def given(self, count: int) -> Floats:
        """The input [count, width], to be filled before each `run`."""
        if count > len(self._given):
            self._resize(2 * count)
        return self._given[:count]

    def part(self, rows: int) -> Part:
        """The program with memory for `rows` rows."""
        program = self._program
        sizes = program.width, self._width, program.vocabulary
        memory = [torch.empty(rows * size, dtype=torch.float32, device="cpu") for size in sizes]
        made = native.Part(program.address, program.count, *(each.data_ptr() for each in memory))
        return Part(made, [*memory, program])

    def run(
        self, count: int, positions: int = 1, see: Callable[[PassBuffers], None] | None = None
    ) -> Floats:
        """Run a pass: [count, outputs], a view that the next pass overwrites.

        For programs with keys and values: see: writes positions, slots and what rows see;
        positions: all are below this.
        """
        if see is not None:
            see(self._rows)
        self._rows.native.rows = self._rows.native.kept = count
        self._program.play(self._rows.native, positions)
        return self._out[:count]

    def out(self, count: int) -> Floats:
        """The first `count` rows of the last `run`'s output, in place."""
        return self._out[:count]

    def likeliest(self, count: int, most: int) -> tuple[list[list[int]], list[list[float]]]:
        """Places and shares of the `most` largest outputs, or of all if there are fewer, for each
        row of the last `run`; see `paceline.kernels.likeliest`."""
        places, shares = likeliest(self._out[:count], most)
        return places.tolist(), shares.tolist()

    def _resize(self, capacity: int) -> None:
        self._rows = PassBuffers(capacity)
        self._rows.tokens[:] = self._rows.keep[:] = np.arange(capacity)
        self._given = np.empty((capacity, self._width), dtype=np.float32)
        self._out = np.empty((capacity, self._program.vocabulary), dtype=np.float32)
        one = self._rows.native
        one.given_count, one.given = capacity, self._given.ctypes.data
        one.logits = self._out.ctypes.data


def layer_of(
    kind: type[BlockLinear], weights: Sequence[torch.Tensor], bias: torch.Tensor | None = None
) -> BlockLinear:
    """One layer for these weights, their outputs side by side.

    Raises UnpackableError if the kind is not available.
    """
    whole: torch.Tensor = torch.cat([weight.detach().float() for weight in weights])
    return kind(whole, bias)  # type: ignore[arg-type]


def merged(kind: type[BlockLinear], layers: Sequence[nn.Linear]) -> BlockLinear:
    """The same for linear layers."""
    sizes = [layer.out_features for layer in layers]
    bias = stacked_biases([layer.bias for layer in layers], sizes)
    return layer_of(kind, [layer.weight for layer in layers], bias)
