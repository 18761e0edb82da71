"""Steps as torch's operators, on any device: few and large, as a GPU wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from paceline.kernels.programs.merging import Block, Merged, merged
from paceline.kernels.programs.position_rows import PositionRows
from paceline.kernels.programs.steps import (
    Function,
    Join,
    Kind,
    Lowered,
    Op,
    Operand,
    Step,
    Value,
)
from paceline.kernels.stand_in import side_by_side

__all__ = ["PassRows", "TorchProgram"]

_OTHER = 1 << 24  # of GATHER, see `Step`
_Run = Callable[["_Pass"], None]

_FUNCTIONS: Mapping[Function, Callable[[torch.Tensor], torch.Tensor]] = {
    Function.SAME: lambda numbers: numbers,
    Function.SILU: F.silu,
    Function.GELU: F.gelu,
    Function.GELU_TANH: lambda numbers: F.gelu(numbers, approximate="tanh"),
    Function.RELU: F.relu,
    Function.TANH: torch.tanh,
    Function.SIGMOID: torch.sigmoid,
    Function.SQUARE: torch.square,
    Function.CUBE: lambda numbers: numbers**3,
    Function.RSQRT: torch.rsqrt,
}
_JOINS: Mapping[Join, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Join.PLUS: torch.add,
    Join.MINUS: torch.sub,
    Join.TIMES: torch.mul,
    Join.OVER: torch.div,
    Join.FROM: lambda one, other: other - one,
    Join.UNDER: lambda one, other: other / one,
}


@dataclass(frozen=True)
class PassRows:
    """What one pass reads and where it writes.

    tokens, positions, where: int64 [rows]; where: slots of the pool. columns: the slots attended
    to, indices [n] or a range. masks: per kind of layer [rows, n], added to scores. keep: the rows
    whose logits are wanted, None for all. pool: [slots, layers, 2, heads, size]. states: [slots,
    numbers], None if they are not kept. given: embeddings of ids beyond the vocabulary.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    where: torch.Tensor
    columns: torch.Tensor | tuple[int, int]
    masks: Sequence[torch.Tensor]
    keep: torch.Tensor | None
    pool: torch.Tensor
    states: torch.Tensor | None
    given: torch.Tensor | None


class _Pass:
    """A pass under way: its values so far, and what several steps share."""

    def __init__(self, rows: PassRows, tables: PositionRows) -> None:
        self.rows = rows
        self.values: dict[Value, torch.Tensor] = {}
        self._tables = tables
        self._by_position: dict[int, torch.Tensor] = {}
        self._masks: dict[tuple[int, int], torch.Tensor] = {}

    def by_position(self, number: int) -> torch.Tensor:
        """Rows of a table, see `PositionRows.rows`."""
        if number not in self._by_position:
            self._by_position[number] = self._tables.rows(number, self.rows.positions)
        return self._by_position[number]

    def mask(self, kind: int, groups: int) -> torch.Tensor:
        """The mask [groups * rows, slots] of a kind of layer, once for each of `groups` queries."""
        if (kind, groups) not in self._masks:
            mask = self.rows.masks[kind]
            wide = mask.expand(groups, *mask.shape).reshape(-1, mask.shape[1])
            self._masks[kind, groups] = wide
        return self._masks[kind, groups]


class TorchProgram:
    """Runs lowered steps on a model's own linear layers, whose weights it may move in memory.

    layers, heads, size: of the pool of keys and values. positions: tables that the steps read.

    Raises ValueError, naming the reason, for steps that it has no operators for.
    """

    def __init__(self, lowered: Lowered, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._logits = lowered.logits
        self.layers, self.heads, self.size = _pool_of(lowered.steps)
        self.positions = PositionRows(lowered.tables, device, dtype)
        plan = merged(lowered.steps)
        self._places = plan.places
        self._runs = [self._made(step, plan) for step in plan.steps]
        self._last = _last_reads(plan, lowered.logits)

    def run(self, rows: PassRows) -> torch.Tensor:
        """Run one pass: logits [kept rows, vocabulary]."""
        now = _Pass(rows, self.positions)
        for run, done in zip(self._runs, self._last, strict=True):
            run(now)
            for value in done:
                now.values.pop(value, None)
        return now.values[self._logits]

    def _made(self, step: Step, plan: Merged) -> _Run:
        if step in plan.blocks:
            return self._block(plan.blocks[step])
        if step in plan.added:
            return self._sum(step, plan.added[step])
        if step.op not in _STEPS:
            raise ValueError(f"there is no operator for {step.op.name}")
        return _STEPS[step.op](self, step)

    # Products.

    def _block(self, block: Block) -> _Run:
        weight, bias = self._weights(block.products)
        read = self._reader(block.products[0].of[0])
        turn = self._turn(block)
        parts = [
            (value, begin, begin + step.count)
            for step, begin in zip(block.products, block.begins, strict=True)
            if (value := step.out) is not None
        ]
        renamed = {each.of[0].value: each.out for each in block.turned}
        parts = [(renamed.get(value) or value, begin, end) for value, begin, end in parts]

        def run(now: _Pass) -> None:
            whole = F.linear(read(now), weight, bias)
            if turn is not None:
                turn(now, whole)
            for value, begin, end in parts:
                now.values[value] = whole[:, begin:end]

        return run

    def _weights(self, products: Sequence[Step]) -> tuple[torch.Tensor, torch.Tensor | None]:
        linears = [step.linear for step in products]
        for linear in linears:
            if linear is None or linear.weight.dtype != self._dtype:
                raise ValueError("its products have no weights of their own in its dtype")
            if linear.weight.device != self._device:
                raise ValueError("its layers are on several devices")
        return side_by_side([linear for linear in linears if linear is not None])

    def _sum(self, step: Step, product: Step) -> _Run:
        """Add a product in place to what nobody reads later."""
        weight, bias = self._weights([product])
        read = self._reader(product.of[0])
        total = next(each.value for each in step.of if each.value is not product.out)
        assert step.out is not None and total is not None
        out = step.out

        def run(now: _Pass) -> None:
            found = now.values[total].addmm_(read(now), weight.T)
            now.values[out] = found if bias is None else found.add_(bias)

        return run

    def _turn(self, block: Block) -> Callable[[_Pass, torch.Tensor], None] | None:
        """Rotate the block's first outputs in place."""
        if not block.turned:
            return None
        width = sum(step.count for step in block.turned)
        first = block.turned[0]
        turned = self._rotation(first)

        def run(now: _Pass, whole: torch.Tensor) -> None:
            heads = whole[:, :width].unflatten(1, (-1, first.size))
            turned(now, heads, heads)

        return run

    def _rotation(
        self, step: Step
    ) -> Callable[[_Pass, torch.Tensor, torch.Tensor | None], torch.Tensor]:
        """heads [rows, n, size] -> heads x cosines + (heads, reordered) x sines with signs."""
        assert step.order is not None
        order = step.order.long()
        cosines, sines = (each.value for each in step.of[1:])
        if cosines is None or sines is None or any(each.at for each in step.of[1:]):
            raise ValueError("a rotation reads only a part of its tables")
        number = self.positions.add(cosines)
        signed = self.positions.add(sines, order.sign())
        half = step.size // 2
        places = (order.abs() - 1).to(self._device)

        def run(now: _Pass, heads: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
            other = heads.roll(half, -1) if step.halves else heads.index_select(-1, places)
            cosines, sines = now.by_position(number)[:, None], now.by_position(signed)[:, None]
            return torch.addcmul(heads * cosines, other, sines, out=out)

        return run

    # What steps read.

    def _reader(self, operand: Operand, count: int = 0) -> Callable[[_Pass], torch.Tensor]:
        """Reads an operand as a tensor that broadcasts to [rows, count]; by default as long as it
        is."""
        count = count or operand.period * operand.each
        if operand.value is None:
            assert operand.data is not None
            data = operand.data
            if len(data) not in (1, count):
                data = data[_indices(operand, count)]
            numbers = data.to(self._device, self._dtype)
            return lambda now: numbers
        value = operand.value
        whole = self._value(value)
        if operand.whole and value.count == count:
            return whole
        if operand.period == 1 or (operand.each == 1 and operand.period == count):
            begin, end = operand.at, operand.at + operand.period
            return lambda now: whole(now)[:, begin:end]
        places = _indices(operand, count).to(self._device)
        return lambda now: whole(now).index_select(1, places)

    def _value(self, value: Value) -> Callable[[_Pass], torch.Tensor]:
        if value.kind == Kind.PLACE:
            number = self.positions.add(value)
            return lambda now: now.by_position(number)
        return lambda now: now.values[value]

    # Other steps.

    def _embed(self, step: Step) -> _Run:
        table, out = step.table, step.out
        if table is None or table.dtype != self._dtype or table.device != self._device:
            raise ValueError("its embeddings are no table in its dtype on its device")
        assert out is not None

        def run(now: _Pass) -> None:
            tokens = now.rows.tokens
            if now.rows.given is not None:
                tokens = tokens.masked_fill(tokens >= len(table), 0)
            now.values[out] = F.embedding(tokens, table)

        return run

    def _given(self, step: Step) -> _Run:
        out, first = step.out, step.size
        assert out is not None

        def run(now: _Pass) -> None:
            given, tokens = now.rows.given, now.rows.tokens
            if given is not None:
                own = given[(tokens - first).clamp(min=0)]
                now.values[out] = torch.where((tokens >= first)[:, None], own, now.values[out])

        return run

    def _map(self, step: Step) -> _Run:
        out, function = step.out, _FUNCTIONS[step.function]
        assert out is not None
        one = self._reader(step.of[0], step.count)
        if step.join == Join.ALONE:
            return lambda now: now.values.__setitem__(out, function(one(now)))
        other, join = self._reader(step.of[1], step.count), _JOINS[step.join]
        return lambda now: now.values.__setitem__(out, join(function(one(now)), other(now)))

    def _mean(self, step: Step) -> _Run:
        out, read, function = step.out, self._reader(step.of[0]), _FUNCTIONS[step.function]
        assert out is not None

        def run(now: _Pass) -> None:
            now.values[out] = function(read(now)).unflatten(1, (-1, step.size)).mean(-1)

        return run

    def _norm(self, step: Step) -> _Run:
        out, read = step.out, self._reader(step.of[0])
        weights = [self._reader(each, step.size) for each in step.of[1:]]
        normed = F.rms_norm if step.op == Op.RMS_NORM else F.layer_norm
        assert out is not None

        def run(now: _Pass) -> None:
            rows = read(now).unflatten(1, (-1, step.size))
            given = [weight(now).expand(step.size) for weight in weights]
            found = normed(rows, (step.size,), *given, eps=step.number)  # type: ignore[operator]
            now.values[out] = found.flatten(1)

        return run

    def _rotate(self, step: Step) -> _Run:
        out, read, turned = step.out, self._reader(step.of[0]), self._rotation(step)
        assert out is not None

        def run(now: _Pass) -> None:
            heads = read(now).unflatten(1, (-1, step.size))
            now.values[out] = turned(now, heads, None).flatten(1)

        return run

    def _gather(self, step: Step) -> _Run:
        assert step.order is not None and step.out is not None
        out, order = step.out, step.order.long()
        one, other = (self._reader(each) for each in step.of)
        second = order.abs() > _OTHER
        places = order.abs() - 1 - second * _OTHER
        width = step.of[0].period
        places = (places + second * width).to(self._device)
        signs = order.sign().to(self._device, self._dtype) if bool((order < 0).any()) else None
        both = bool(second.any())

        def run(now: _Pass) -> None:
            rows = torch.cat([one(now), other(now)], dim=1) if both else one(now)
            found = rows.index_select(1, places)
            now.values[out] = found if signs is None else found * signs

        return run

    def _store(self, step: Step) -> _Run:
        keys, values = (self._reader(each) for each in step.of)
        width = self.heads * self.size
        together = self._adjoin(step.of)

        def run(now: _Pass) -> None:
            where, pool = now.rows.where, now.rows.pool[:, step.layer].flatten(1)
            first = keys(now)
            if together:
                both = first.as_strided((len(first), 2 * width), (first.stride(0), 1))
                pool.index_put_((where,), both)
            else:
                pool[:, :width].index_put_((where,), first)
                pool[:, width:].index_put_((where,), values(now))

        return run

    def _adjoin(self, of: Sequence[Operand]) -> bool:
        """Whether values lie right after keys in memory."""
        places = [
            self._places.get(each.value) if each.whole and each.value else None for each in of
        ]
        keys, values = places
        if keys is None or values is None or keys.block is not values.block:
            return False
        return keys.at + of[0].period == values.at

    def _attend(self, step: Step) -> _Run:
        out, read = step.out, self._reader(step.of[0])
        groups = step.heads // step.key_heads
        if step.cap:
            raise ValueError("its attention has capped scores")
        assert out is not None

        def run(now: _Pass) -> None:
            columns, pool = now.rows.columns, now.rows.pool[:, step.layer]
            if isinstance(columns, tuple):
                seen = pool[columns[0] : columns[1]]
            else:
                seen = pool.index_select(0, columns)
            keys, values = seen.permute(1, 2, 0, 3)
            # Queries that share keys become rows of one head: keys need not be repeated.
            queries = read(now).unflatten(1, (step.key_heads, groups, step.size))
            queries = queries.permute(1, 2, 0, 3).flatten(1, 2)
            mask = now.mask(step.seen, groups)
            found = F.scaled_dot_product_attention(
                queries[None], keys[None], values[None], mask[None, None], scale=step.number
            )
            apart = found[0].unflatten(1, (groups, -1)).permute(2, 0, 1, 3)
            now.values[out] = apart.flatten(1)

        return run

    def _states(self, step: Step) -> _Run:
        read, begin, end = self._reader(step.of[0]), step.at, step.at + step.count

        def run(now: _Pass) -> None:
            states = now.rows.states
            if states is not None:
                states[:, begin:end].index_put_((now.rows.where,), read(now).to(states.dtype))

        return run

    def _select(self, step: Step) -> _Run:
        out, read = step.out, self._reader(step.of[0])
        assert out is not None

        def run(now: _Pass) -> None:
            keep, rows = now.rows.keep, read(now)
            now.values[out] = rows if keep is None else rows.index_select(0, keep)

        return run

    def _scatter(self, step: Step) -> _Run:
        assert step.order is not None and step.out is not None
        out, read = step.out, self._reader(step.of[0])
        places = (step.order.long() - 1).to(self._device)

        def run(now: _Pass) -> None:
            rows = read(now)
            found = rows.new_full((len(rows), step.count), step.number)
            now.values[out] = found.index_copy_(1, places, rows)

        return run


_STEPS: Mapping[Op, Callable[[TorchProgram, Step], _Run]] = {
    Op.EMBED: TorchProgram._embed,
    Op.GIVEN: TorchProgram._given,
    Op.MAP: TorchProgram._map,
    Op.MEAN: TorchProgram._mean,
    Op.RMS_NORM: TorchProgram._norm,
    Op.LAYER_NORM: TorchProgram._norm,
    Op.ROTATE: TorchProgram._rotate,
    Op.GATHER: TorchProgram._gather,
    Op.STORE: TorchProgram._store,
    Op.ATTEND: TorchProgram._attend,
    Op.STATES: TorchProgram._states,
    Op.SELECT: TorchProgram._select,
    Op.SCATTER: TorchProgram._scatter,
}


def _pool_of(steps: Sequence[Step]) -> tuple[int, int, int]:
    """Layers, heads and size of keys and values, which must be the same everywhere."""
    stores = [step for step in steps if step.op == Op.STORE]
    shapes = {(step.key_heads, step.size, step.count) for step in stores}
    layers = {step.layer for step in stores}
    if len(shapes) != 1 or layers != {*range(len(layers))}:
        raise ValueError("its layers have keys and values of different shapes")
    heads, size, count = shapes.pop()
    if size != count:
        raise ValueError("its keys and values have different sizes")
    return len(layers), heads, size


def _indices(operand: Operand, count: int) -> torch.Tensor:
    """Where the numbers of an operand are."""
    return operand.at + torch.arange(count) // operand.each % operand.period


def _last_reads(plan: Merged, logits: Value) -> list[list[Value]]:
    """What nobody reads after each step."""
    last: dict[Value, int] = {}
    for place, step in enumerate(plan.steps):
        reading = [step, plan.added[step]] if step in plan.added else [step]
        for each in reading:
            last.update(dict.fromkeys(each.reads(), place))
    found: list[list[Value]] = [[] for _ in plan.steps]
    for value, place in last.items():
        if value is not logits:
            found[place].append(value)
    return found
