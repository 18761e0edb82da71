"""Emit steps one after the other, fusing those that can run as one."""

from __future__ import annotations

from typing import Any

import torch

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.programs.steps import OTHER, Function, Join, Kind, Op, Operand, Step, Value
from paceline.kernels.stand_in import LinearStandIn
from paceline.targets.one_call.recording import UnfitError
from paceline.targets.one_call.values import Features, value_of


class Emitter:
    """Makes steps and the values they produce.

    steps: made so far.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._values: dict[int, Value] = {}
        self._makers: dict[Operand, Step] = {}  # by all of the value that they make
        self._gathered: dict[tuple[Any, ...], Value] = {}

    def new_value(self, count: int, kind: Kind) -> Value:
        """Make a value of `count` numbers per row."""
        value = Value(1 + len(self._values), count, kind)
        self._values[value.number] = value
        return value

    def value_of_code(self, code: int) -> Value:
        """The value an element belongs to."""
        return self._values[value_of(code)]

    def add(self, step: Step) -> None:
        """Add a step."""
        kinds = {value.kind for value in step.reads()} - {Kind.PLACE}
        late = step.out is not None and step.out.kind == Kind.KEPT and step.op != Op.SELECT
        if len(kinds) > 1 or (late and any(v.kind != Kind.KEPT for v in step.reads())):
            raise UnfitError("its output head reads more than the last states")
        self.steps.append(step)
        if step.out is not None and step.op != Op.GIVEN:
            self._makers[Operand.all_of(step.out)] = step

    def make(self, op: Op, count: int, *of: Operand, **others: Any) -> Value:
        """Add a step that makes `count` numbers for each row of its first operand."""
        rows = of[0].value
        if rows is None or rows.kind == Kind.PLACE:
            raise UnfitError("a step reads no rows")
        out = self.new_value(count, rows.kind)
        self.add(Step(op, count, out, of, **others))
        return out

    def operand(self, features: Features) -> Operand:
        """Make features an operand; gathers them first if steps cannot read their order."""
        if len(features.values) == 1 and bool((features.sign > 0).all()):
            value, at = self._values[features.values[0]], features.feature
            each, period = _pattern(at)
            place = torch.arange(len(at), device="cpu")
            if bool((at == at[0] + place // each % period).all()):
                return Operand(period, value, None, int(at[0]), each)
        return self._gather(features)

    def in_a_row(self, features: Features) -> Operand:
        """Make features an operand of consecutive numbers, as most steps need."""
        found = self.operand(features)
        if found.each != 1 or found.period != len(features.feature):
            found = self._gather(features)
        return found

    def product(self, linear: BlockLinear | LinearStandIn, rows: Operand) -> Value:
        """Multiply rows by the layer's matrix."""
        weights: dict[str, Any] = {"linear": linear}
        if isinstance(linear, BlockLinear):
            weights = {"matrix": linear.matrix, "bias": linear.bias}
        return self.make(Op.PRODUCT, linear.out_features, rows, size=linear.in_features, **weights)

    def norm(self, rows: Features, eps: float, scale: Operand, *shift: Operand) -> Value:
        """Normalise segments of the scale's size: with a shift as LayerNorm, else as RMSNorm."""
        operand, op = self.in_a_row(rows), Op.LAYER_NORM if shift else Op.RMS_NORM
        of = operand, scale, *shift
        return self.make(op, operand.period, *of, size=scale.period, number=eps)

    def mean(self, rows: Features, size: int) -> Value:
        """Average every `size` numbers."""
        operand, function = self.in_a_row(rows), Function.SAME
        curve = self._curve(operand)
        if curve is not None and curve.function == Function.SQUARE:
            squared = curve.of[0]
            if squared.each == 1 and squared.period == operand.period:
                function, operand = Function.SQUARE, squared
        return self.make(Op.MEAN, operand.period // size, operand, function=function, size=size)

    def scatter(self, rows: Value, places: torch.Tensor, count: int) -> Value:
        """Scatter the rows' numbers to `places` among `count`, the rest filled with -inf."""
        of, order = Operand.all_of(rows), (places + 1).int().contiguous()
        return self.make(Op.SCATTER, count, of, size=len(order), order=order, number=-torch.inf)

    def curve(self, rows: Features, function: Function) -> Value:
        """Apply a function to every number."""
        return self.make(Op.MAP, len(rows.feature), self.operand(rows), function=function)

    def map(self, left: Operand, join: Join, right: Operand, count: int) -> Value:
        """Join two operands, `count` numbers of each; fused with a rotation or a function of one of
        them."""
        turned = self._turned(left, right, count) if join == Join.PLUS else None
        if turned is not None:
            return turned
        either = join in (Join.PLUS, Join.TIMES)
        for one, other in [(left, right), (right, left)] if either else [(left, right)]:
            curve = self._curve(one)
            if curve is not None and one.period == count:
                function, of = curve.function, (curve.of[0], other)
                return self.make(Op.MAP, count, *of, function=function, join=join)
        return self.make(Op.MAP, count, left, right, join=join)

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
            of = [*map(Operand.all_of, sources)]
            self._gathered[key] = self.make(Op.GATHER, len(order), of[0], of[-1], order=order)
        return Operand.all_of(self._gathered[key])

    def _turned(self, left: Operand, right: Operand, count: int) -> Value | None:
        """Fuse x * cosines + reordered x * sines into a rotation."""
        parts = [each for each in map(self._by_position, (left, right)) if each is not None]
        if len(parts) < 2:
            return None
        (x, cosines), (y, sines) = parts
        turned, size = self._makers.get(y), cosines.period
        if turned is None or turned.op != Op.GATHER or turned.order is None:
            return None
        of_x = all(each.value is x.value for each in turned.of)
        in_order = all(each.each == 1 for each in (x, cosines, sines))
        if not (of_x and in_order and x.period == count and sines.period == size):
            return None
        order = turned.order.long()
        begins = x.at + torch.arange(count, device="cpu") // size * size
        head = order.sign() * (order.abs() - begins)
        if bool((head != head[:size].repeat(count // size)).any()):
            return None
        half = torch.arange(1, size // 2 + 1, device="cpu")
        halves = size % 2 == 0 and bool((head[:size] == torch.cat([-half - size // 2, half])).all())
        order, of = head[:size].int().contiguous(), (x, cosines, sines)
        return self.make(Op.ROTATE, count, *of, size=size, order=order, halves=halves)

    def _curve(self, operand: Operand) -> Step | None:
        """The step that makes all of an operand as a function of one other."""
        step = self._makers.get(operand)
        return step if step is not None and step.op == Op.MAP and step.join == Join.ALONE else None

    def _by_position(self, operand: Operand) -> tuple[Operand, Operand] | None:
        """The operands of a product with a value by position."""
        step = self._makers.get(operand)
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
