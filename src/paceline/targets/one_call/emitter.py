"""Emit steps one after the other, fusing those that can run as one."""

from __future__ import annotations

from typing import Any

import torch

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.programs.steps import OTHER, Function, Join, Kind, Op, Operand, Step, Value
from paceline.kernels.stand_in import LinearStandIn
from paceline.targets.one_call.recording import UnfitError
from paceline.targets.one_call.values import Features, value_of

__all__ = ["Emitter"]


class Emitter:
    """Makes steps and the values they produce.

    steps: made so far.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._values: dict[int, Value] = {}
        self._gathered: dict[tuple[Any, ...], Value] = {}

    def new_value(self, count: int, kind: Kind) -> Value:
        """Make a value of `count` numbers per row."""
        value = Value(1 + len(self._values), count, kind)
        self._values[value.number] = value
        return value

    def value_of_code(self, code: int) -> Value:
        """The value an element belongs to."""
        return self._values[value_of(code)]

    def step(self, step: Step) -> Value | None:
        """Add a step; return what it produces."""
        kinds = {value.kind for value in step.reads()} - {Kind.PLACE}
        late = step.out is not None and step.out.kind == Kind.KEPT and step.op != Op.SELECT
        if len(kinds) > 1 or (late and any(v.kind != Kind.KEPT for v in step.reads())):
            raise UnfitError("its output head reads more than the last states")
        self.steps.append(step)
        if step.out is not None and step.op != Op.GIVEN:
            step.out.source = step
        return step.out

    def operand(self, features: Features) -> Operand:
        """Make features an operand; gathers them first if steps cannot read their order."""
        if len(features.values) == 1 and bool((features.sign > 0).all()):
            value, at = self._values[features.values[0]], features.feature
            each, period = _pattern(at)
            place = torch.arange(len(at))
            if bool((at == at[0] + place // each % period).all()):
                return Operand(period, value, None, int(at[0]), each)
        return self._gather(features)

    def in_a_row(self, features: Features) -> Operand:
        """Make features an operand of consecutive numbers, as most steps need."""
        found = self.operand(features)
        if found.each != 1 or found.period != len(features.feature):
            found = self._gather(features)
        return found

    def embed(self, count: int, **table: Any) -> Value:
        """Look up the rows' tokens."""
        return self._made(Step(Op.EMBED, count, self.new_value(count, Kind.ROWS), **table))

    def product(self, linear: BlockLinear | LinearStandIn, rows: Operand) -> Value:
        """Multiply rows by the layer's matrix."""
        out, size = self.new_value(linear.out_features, self._kind(rows)), linear.in_features
        if isinstance(linear, LinearStandIn):
            return self._made(Step(Op.PRODUCT, out.count, out, (rows,), size=size, linear=linear))
        matrix, bias = linear.matrix, linear.bias
        step = Step(Op.PRODUCT, out.count, out, (rows,), size=size, matrix=matrix, bias=bias)
        return self._made(step)

    def norm(self, rows: Features, scale: Operand, shift: Operand | None, eps: float) -> Value:
        """Normalise segments of the scale's size."""
        operand = self.in_a_row(rows)
        out = self.new_value(operand.period, self._kind(operand))
        op, of = Op.RMS_NORM, (operand, scale)
        if shift is not None:
            op, of = Op.LAYER_NORM, (operand, scale, shift)  # type: ignore[assignment]
        return self._made(Step(op, out.count, out, of, size=scale.period, number=eps))

    def mean(self, rows: Features, size: int) -> Value:
        """Average every `size` numbers."""
        operand = self.in_a_row(rows)
        function, source = Function.SAME, operand.value and operand.value.source
        if operand.whole and source and _is_curve(source, Function.SQUARE):
            squared = source.of[0]
            if squared.each == 1 and squared.period == operand.period:
                function, operand = Function.SQUARE, squared
        out = self.new_value(operand.period // size, self._kind(operand))
        return self._made(Step(Op.MEAN, out.count, out, (operand,), function, size=size))

    def scatter(self, rows: Features, places: torch.Tensor, count: int, number: float) -> Value:
        """Scatter the rows' numbers to `places` among `count`, the rest filled with `number`."""
        operand = self.in_a_row(rows)
        out = self.new_value(count, self._kind(operand))
        order = (places + 1).int().contiguous()
        step = Step(Op.SCATTER, count, out, (operand,), size=len(order), order=order, number=number)
        return self._made(step)

    def curve(self, rows: Features, function: Function) -> Value:
        """Apply a function to every number."""
        operand = self.operand(rows)
        out = self.new_value(len(rows.feature), self._kind(operand))
        return self._made(Step(Op.MAP, out.count, out, (operand,), function))

    def map(self, left: Operand, join: Join, right: Operand, count: int = 0) -> Value:
        """Join two operands, `count` numbers of each."""
        out = self.new_value(count or left.period, self._kind(left))
        step = (
            self._rotation(left, join, right, out)
            or self._bent(left, join, right, out)
            or Step(Op.MAP, out.count, out, (left, right), join=join)
        )
        return self._made(step)

    def _made(self, step: Step) -> Value:
        found = self.step(step)
        if found is None:
            raise UnfitError("a step has no output")
        return found

    def _kind(self, operand: Operand) -> Kind:
        if operand.value is None or operand.value.kind == Kind.PLACE:
            raise UnfitError("a step reads no rows")
        return operand.value.kind

    def _gather(self, features: Features) -> Operand:
        numbers = features.values
        if len(numbers) > 2 or len(features.feature) >= OTHER:
            raise UnfitError(f"a value is put together from {len(numbers)} others, or is too long")
        sources = [self._values[number] for number in numbers]
        if any(source.kind == Kind.PLACE for source in sources):
            raise UnfitError("position values are put together")
        second = (features.value != numbers[0]).long() * OTHER
        order = (features.sign * (1 + features.feature + second)).int().contiguous()
        key = (tuple(numbers), order.numpy().tobytes())
        if key not in self._gathered:
            of = tuple(Operand(source.count, source) for source in sources)
            out = self.new_value(len(order), sources[0].kind)
            self._gathered[key] = self._made(
                Step(Op.GATHER, out.count, out, (of[0], of[-1]), order=order)
            )
        value = self._gathered[key]
        return Operand(value.count, value)

    def _bent(self, left: Operand, join: Join, right: Operand, out: Value) -> Step | None:
        """Fuse a function with the join of its result."""
        for one, other in ((left, right), (right, left)):
            source = one.value and one.value.source
            if one.whole and source and source.op == Op.MAP and source.join == Join.ALONE:
                if one is right and join not in (Join.PLUS, Join.TIMES):
                    continue
                if one.period == out.count:
                    of = source.of[0], other
                    return Step(Op.MAP, out.count, out, of, source.function, join)
        return None

    def _rotation(self, left: Operand, join: Join, right: Operand, out: Value) -> Step | None:
        """Fuse x * cosines + reordered x * sines into a rotation."""
        if join != Join.PLUS:
            return None
        sources = [one.value.source if one.whole and one.value else None for one in (left, right)]
        parts = [each for each in map(_by_position, sources) if each is not None]
        if len(parts) < 2:
            return None
        x, cosines = parts[0]
        y, sines = parts[1]
        turned = y.value.source if y.whole and y.value else None
        if turned is None or turned.op != Op.GATHER or turned.order is None:
            return None
        size = cosines.period
        if (
            turned.of[0].value is not x.value
            or turned.of[1].value is not x.value
            or x.each != 1
            or x.period != out.count
            or sines.period != size
            or cosines.each != 1
            or sines.each != 1
        ):
            return None
        order = turned.order.long()
        begins = x.at + torch.arange(out.count) // size * size
        head = order.sign() * (order.abs() - begins)
        if bool((head != head[:size].repeat(out.count // size)).any()):
            return None
        half = torch.arange(1, size // 2 + 1)
        halves = size % 2 == 0 and bool((head[:size] == torch.cat([-half - size // 2, half])).all())
        return Step(
            Op.ROTATE,
            out.count,
            out,
            (x, cosines, sines),
            size=size,
            order=head[:size].int().contiguous(),
            halves=halves,
        )


def _is_curve(step: Step, function: Function) -> bool:
    return step.op == Op.MAP and step.join == Join.ALONE and step.function == function


def _by_position(step: Step | None) -> tuple[Operand, Operand] | None:
    """The operands of a product with a value by position."""
    if step is None or step.op != Op.MAP or step.join != Join.TIMES or step.function:
        return None
    left, right = step.of
    if right.value is None or right.value.kind != Kind.PLACE:
        return None
    return left, right


def _pattern(at: torch.Tensor) -> tuple[int, int]:
    """How often each number repeats in a row, and after how many distinct ones it recurs."""
    others = (at != at[0]).nonzero()
    each = int(others[0]) if len(others) else len(at)
    if each == len(at):
        return each, 1
    again = (at[each:] == at[0]).nonzero()
    period = (int(again[0]) + each) // each if len(again) else len(at) // each
    return each, max(period, 1)
