"""Build programs out of our own modules: their code runs once, on rows that stand for tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.native import signatures as native
from paceline.kernels.native.calls import kernels
from paceline.kernels.programs.program import CacheLayer, PassBuffers, Program
from paceline.kernels.programs.rotary import Rotary
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

_FEW = 8  # rows

Floats = NDArray[np.float32]

LayerOf = Callable[..., BlockLinear]
"""See `layers_of`."""


class Builder:
    """Collects steps; every row begins as `width` given numbers, `Rows` for modules to compute on.

    layer: see `layers_of`. rotary: for `Rows.turned`; without it, a program has no positions.
    """

    def __init__(self, width: int, layer: LayerOf, rotary: Rotary | None = None) -> None:
        self.steps, self.rotary = list[Step](), rotary or Rotary(2, 1.0)
        self._width, self._layer = width, layer
        # By the rows that they read: products, with their weights and biases.
        self.products: dict[Operand, tuple[Value, list[Any]]] = {}
        self._given = self.made(Op.GIVEN, width).value

    @property
    def given(self) -> Any:
        """The numbers that every row begins with; made anew, or a cycle would keep the weights."""
        return Rows(self, self._given, self._width)

    def made(self, op: Op, count: int, *of: Operand, **others: Any) -> Rows:
        """Add a step that makes `count` numbers."""
        value = Value(len(self.steps), count, Kind.ROWS)
        self.steps.append(Step(op, count, value, of, **others))
        return Rows(self, value, count)

    def program(self, out: Any = None) -> GivenRows:
        """The program. out: its output, `Rows` that it makes last; None if it only stores."""
        if out is None:
            (one,) = self.given.split([1])
            out = one + one
        for value, weights in self.products.values():
            step, layer = self.steps[value.number], self._layer(*zip(*weights, strict=True))
            step.count, step.matrix, step.bias = value.count, layer.matrix, layer.bias
        return GivenRows(Lowered(self.steps, out.value, self.rotary), self._width)


@dataclass(frozen=True, eq=False)
class Rows:
    """Numbers of every row. A module's own code takes them for a tensor [..., count]: what it would
    compute becomes steps. Functions of torch are methods of the same name here.

    value, count, at: they are `count` numbers of a value from `at` on, those of heads or layers
    side by side. function: still to be applied, by the sum or product that they are for.
    """

    build: Builder
    value: Value
    count: int
    at: int = 0
    function: Function = Function.SAME

    @property
    def of(self) -> Operand:
        """These as a step reads them."""
        if self.function:
            raise ValueError("only a sum or product can apply a function")
        return Operand(self.count, self.value, at=self.at)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return getattr(cls, function.__name__)(*args, **(kwargs or {}))

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Rows:
        """All products of the same rows run as one."""
        of, known = self.of, self.build.products
        if of not in known:
            known[of] = self.build.made(Op.PRODUCT, 0, of, size=self.count).value, []
        value, weights = known[of]
        weights.append((weight, bias))
        begin, value.count = value.count, value.count + len(weight)
        return Rows(self.build, value, len(weight), begin)

    def rms_norm(self, _: Any, weight: torch.Tensor, eps: float) -> Rows:
        """Each of the segments of the weight's size is normalised."""
        scale = Operand(len(weight), data=weight.detach().float().contiguous())
        of = self.of, scale
        return self.build.made(Op.RMS_NORM, self.count, *of, size=len(weight), number=eps)

    def silu(self, inplace: bool = False) -> Rows:
        """See `function`."""
        return replace(self, function=Function.SILU)

    @staticmethod
    def cat(both: Sequence[Rows], dim: int) -> Rows:
        """Both side by side."""
        own, others = (torch.arange(1, 1 + rows.count, device="cpu") for rows in both)
        order, of = torch.cat([own, OTHER + others]).int(), (rows.of for rows in both)
        return both[0].build.made(Op.GATHER, len(order), *of, order=order)

    def __add__(self, other: Rows) -> Rows:
        return self._joined(Join.PLUS, other)

    def __mul__(self, other: Rows | torch.Tensor) -> Rows:
        return self._joined(Join.TIMES, other)

    def _joined(self, join: Join, other: Rows | torch.Tensor) -> Rows:
        """Both; numbers of the other repeat if they are fewer."""
        if isinstance(other, torch.Tensor):
            by = Operand(other.numel(), data=other.detach().float().flatten())
        elif other.function:
            return other._joined(join, self)
        else:
            by = other.of
        of, function = replace(self, function=Function.SAME).of, self.function
        return self.build.made(Op.MAP, self.count, of, by, function=function, join=join)

    def to(self, *_: Any) -> Rows:
        """The same: all are floats, in a row."""
        return self

    float = flatten = unflatten = to

    def split(self, sizes: Sequence[int]) -> list[Rows]:
        """The first numbers, the next ones, …"""
        begins = accumulate(sizes, initial=self.at)
        return [replace(self, at=at, count=count) for at, count in zip(begins, sizes)]

    def turned(self) -> Rows:
        """Heads with rotary positions applied."""
        by = self.build.rotary
        of = self.of, Operand(by.size, by.cosines), Operand(by.size, by.sines)
        return self.build.made(Op.ROTATE, self.count, *of, size=by.size, halves=True)

    def store(self, values: Rows, layer: int) -> None:
        """Write heads of keys, these, and of values to the rows' slots in a layer of the cache."""
        of, size = (self.of, values.of), self.build.rotary.size
        heads = self.count // size
        step = Step(Op.STORE, size, None, of, layer=layer, size=size, key_heads=heads)
        self.build.steps.append(step)

    def attended(self, layer: int, key_heads: int) -> Rows:
        """Attention of heads of queries, these, over the slots that rows see in a layer of the
        cache, which has so many heads."""
        count, size = self.count, self.build.rotary.size
        sizes = {"size": size, "heads": count // size, "key_heads": key_heads}
        return self.build.made(Op.ATTEND, count, self.of, layer=layer, number=size**-0.5, **sizes)


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
        kernels().run(*self._program.ready(self._rows.native, positions))
        return self._out[:count]

    def _resize(self, capacity: int) -> None:
        self._rows = PassBuffers(capacity)
        self._rows.tokens[:] = self._rows.keep[:] = np.arange(capacity)
        self._given = np.empty((capacity, self._width), dtype=np.float32)
        self._out = np.empty((capacity, self._program.vocabulary), dtype=np.float32)
        one = self._rows.native
        one.given_count, one.given = capacity, self._given.ctypes.data
        one.logits = self._out.ctypes.data


def layers_of(kind: type[BlockLinear]) -> LayerOf:
    """Makes layers of this kind: for tuples of weights [outputs, inputs] and of biases [outputs], one
    below the other; each once, for all programs. Raises UnpackableError if unavailable."""

    @cache
    def layer(
        weights: tuple[torch.Tensor, ...], biases: tuple[torch.Tensor | None, ...]
    ) -> BlockLinear:
        whole = torch.cat([weight.detach().float() for weight in weights])
        return kind(whole, stacked_biases(biases, [*map(len, weights)]))  # type: ignore[arg-type]

    return layer
