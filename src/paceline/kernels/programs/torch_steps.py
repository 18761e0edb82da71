"""Single steps as torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F

from paceline.kernels.programs.steps import OTHER, Function, Join, Op, Step
from paceline.kernels.programs.torch_pass import Operands, Read, Run, TorchPass

_HALVES = (torch.float16, torch.bfloat16)

Rotation = Callable[[TorchPass, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""A pass, heads [rows, n, size], and where to write -> rotated heads."""

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
_NORMS: Mapping[Op, Callable[..., torch.Tensor]] = {
    Op.RMS_NORM: F.rms_norm,
    Op.LAYER_NORM: F.layer_norm,
}


def _order_of(step: Step) -> torch.Tensor:
    """The order of a step, int64. Raises ValueError if it has none."""
    if step.order is None:
        raise ValueError(f"{step.op.name} has no order")
    return step.order.long()


def rotation(operands: Operands, step: Step) -> Rotation:
    """Heads x cosines + (heads, reordered) x sines with signs. Raises ValueError if that is not
    what the step computes."""
    order = _order_of(step)
    cosines, sines = (each.value for each in step.of[1:])
    if cosines is None or sines is None or not all(each.whole for each in step.of[1:]):
        raise ValueError("a rotation reads a part of its tables")
    number = operands.add(cosines)
    signed = operands.add(sines, order.sign())
    half = step.size // 2
    places = (order.abs() - 1).to(operands.device)

    def run(now: TorchPass, heads: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        other = heads.roll(half, -1) if step.halves else heads.index_select(-1, places)
        cosines, sines = now.by_position(number)[:, None], now.by_position(signed)[:, None]
        return torch.addcmul(heads * cosines, other, sines, out=out)

    return run


def _embed(operands: Operands, step: Step) -> Read:
    table = step.table
    if table is None or table.dtype != operands.dtype or table.device != operands.device:
        raise ValueError("its embeddings are no table in its dtype on its device")
    count = len(table)

    def run(now: TorchPass) -> torch.Tensor:
        tokens = now.tokens
        if now.given is not None:
            tokens = tokens.masked_fill(tokens >= count, 0)
        return F.embedding(tokens, table)

    return run


def _given(operands: Operands, step: Step) -> Run:
    out, first = step.out, step.size

    def run(now: TorchPass) -> torch.Tensor | None:
        given, tokens = now.given, now.tokens
        if given is None or out is None:
            return None
        own = given.index_select(0, (tokens - first).clamp(min=0))
        return torch.where((tokens >= first)[:, None], own, now.values[out])

    return run


def _map(operands: Operands, step: Step) -> Read:
    one, function = operands.read(step.of[0], step.count), _FUNCTIONS[step.function]
    if step.join == Join.ALONE:
        return lambda now: function(one(now))
    other, join = operands.read(step.of[1], step.count), _JOINS[step.join]
    return lambda now: join(function(one(now)), other(now))


def _mean(operands: Operands, step: Step) -> Read:
    if operands.dtype in _HALVES:
        raise ValueError("its norms would be computed in half precision")
    read, function = operands.read(step.of[0]), _FUNCTIONS[step.function]

    def run(now: TorchPass) -> torch.Tensor:
        rows = function(read(now))
        return rows.reshape(len(rows), -1, step.size).mean(-1)

    return run


def _norm(operands: Operands, step: Step) -> Read:
    read, norm = operands.read(step.of[0]), _NORMS[step.op]
    factors = [operands.read(each, step.size) for each in step.of[1:]]

    def run(now: TorchPass) -> torch.Tensor:
        rows = read(now)
        segments = rows.view(len(rows), -1, step.size)
        numbers = (each(now).expand(step.size) for each in factors)
        return norm(segments, (step.size,), *numbers, step.number).view(rows.shape)

    return run


def _rotate(operands: Operands, step: Step) -> Read:
    read, turned = operands.read(step.of[0]), rotation(operands, step)

    def run(now: TorchPass) -> torch.Tensor:
        rows = read(now)
        return turned(now, rows.view(len(rows), -1, step.size), None).flatten(1)

    return run


def _gather(operands: Operands, step: Step) -> Read:
    order = _order_of(step)
    one, other = (operands.read(each) for each in step.of)
    second = order.abs() > OTHER
    places = order.abs() - 1 - second * (OTHER - step.of[0].period)
    places = places.to(operands.device)
    signs = order.sign().to(operands.device, operands.dtype) if bool((order < 0).any()) else None
    both = bool(second.any())

    def run(now: TorchPass) -> torch.Tensor:
        rows = torch.cat([one(now), other(now)], dim=1) if both else one(now)
        found = rows.index_select(1, places)
        return found if signs is None else found * signs

    return run


def _attend(operands: Operands, step: Step) -> Read:
    read, groups = operands.read(step.of[0]), step.heads // step.key_heads
    if step.cap:
        raise ValueError("its attention has capped scores")

    def run(now: TorchPass) -> torch.Tensor:
        columns, pool = now.columns, now.pool[:, step.layer]
        if isinstance(columns, tuple):
            seen = pool[columns[0] : columns[1]]
        else:
            seen = pool.index_select(0, columns)
        keys, values = seen.permute(1, 2, 0, 3)
        # Queries that share keys become rows of one head: keys need not be repeated.
        rows = read(now)
        queries = rows.view(len(rows), step.key_heads, groups, step.size).permute(1, 2, 0, 3)
        found = F.scaled_dot_product_attention(
            queries.reshape(1, step.key_heads, -1, step.size),
            keys[None],
            values[None],
            now.mask(step.seen, groups)[None, None],
            scale=step.number,
        )
        apart = found.reshape(step.key_heads, groups, len(rows), step.size)
        return apart.permute(2, 0, 1, 3).flatten(1)

    return run


def _states(operands: Operands, step: Step) -> Run:
    read, begin, end = operands.read(step.of[0]), step.at, step.at + step.count

    def run(now: TorchPass) -> None:
        states = now.states
        if states is not None:
            states[:, begin:end].index_put_((now.where,), read(now).to(states.dtype))

    return run


def _select(operands: Operands, step: Step) -> Read:
    read = operands.read(step.of[0])

    def run(now: TorchPass) -> torch.Tensor:
        keep, rows = now.keep, read(now)
        return rows if keep is None else rows.index_select(0, keep)

    return run


def _scatter(operands: Operands, step: Step) -> Read:
    read, places = operands.read(step.of[0]), (_order_of(step) - 1).to(operands.device)

    def run(now: TorchPass) -> torch.Tensor:
        rows = read(now)
        found = rows.new_full((len(rows), step.count), step.number)
        return found.index_copy_(1, places, rows)

    return run


STEPS: Mapping[Op, Callable[[Operands, Step], Run]] = {
    Op.EMBED: _embed,
    Op.GIVEN: _given,
    Op.MAP: _map,
    Op.MEAN: _mean,
    Op.RMS_NORM: _norm,
    Op.LAYER_NORM: _norm,
    Op.ROTATE: _rotate,
    Op.GATHER: _gather,
    Op.ATTEND: _attend,
    Op.STATES: _states,
    Op.SELECT: _select,
    Op.SCATTER: _scatter,
}
"""How to run a step, by its kind; products and what goes to the cache are in `TorchProgram`.
Functions raise ValueError, naming the reason, for steps that torch has no operators for."""
