"""A pass under way in a program of torch's operators, and how its steps read their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from paceline.kernels.programs.steps import Kind, Operand, Tables, Value

_FIRST = 4096  # positions


@dataclass
class TorchPass:
    """A pass under way: what it reads, where it writes, and what it has computed.

    tokens, positions, where: int64 [rows]; where: slots of the pool. columns: the slots attended
    to, indices [n] or a range. masks: per kind of layer [rows, n], added to scores. keep: the rows
    whose logits are wanted, None for all. pool: [slots, layers, 2, heads, size]. states: [slots,
    numbers], None if they are not kept. given: embeddings of ids beyond the vocabulary, if any.
    tables: of positions. values: [rows, numbers] each, as long as later steps read them.
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
    tables: Operands
    values: dict[Value, torch.Tensor] = field(default_factory=dict)
    _by_position: dict[int, torch.Tensor] = field(default_factory=dict)
    _masks: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def by_position(self, number: int) -> torch.Tensor:
        """Rows of a table, see `Operands.rows`; looked up once."""
        if number not in self._by_position:
            self._by_position[number] = self.tables.rows(number, self.positions)
        return self._by_position[number]

    def mask(self, kind: int, groups: int) -> torch.Tensor:
        """The mask [groups * rows, slots] of a kind of layer, once for each of `groups` queries."""
        if (kind, groups) not in self._masks:
            mask = self.masks[kind]
            wide = mask.expand(groups, *mask.shape).reshape(-1, mask.shape[1])
            self._masks[kind, groups] = wide
        return self._masks[kind, groups]


Read = Callable[[TorchPass], torch.Tensor]
Run = Callable[[TorchPass], torch.Tensor | None]
"""What a step computes; None if it writes to the cache instead."""


class Operands:
    """Makes functions that read operands; has tables of positions on a device, some of them with
    changed signs.

    device, dtype: of all values. moves: how often tables moved in memory, as they do when they
    grow.
    """

    def __init__(self, tables: Tables, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._source = tables
        self._wanted: dict[tuple[Value, tuple[int, ...]], int] = {}
        self._tables: list[torch.Tensor] = []
        self._reached = 0
        self.moves = 0

    def add(self, value: Value, signs: torch.Tensor | None = None) -> int:
        """The number under which `rows` gives a value, multiplied by `signs`, which repeat."""
        wanted = value, () if signs is None else tuple(signs.tolist())
        return self._wanted.setdefault(wanted, len(self._wanted))

    def reserve(self, positions: int) -> None:
        """Make the tables hold all positions below this. Raises ValueError if the model has fewer."""
        if positions <= self._reached or not self._wanted:
            return
        wanted = max(positions, 2 * self._reached, _FIRST)
        found = dict(zip(self._source.values, self._source.extend_to(wanted), strict=True))
        self._tables = [self._made(found[value], signs) for value, signs in self._wanted]
        self._reached = min(map(len, self._tables))
        self.moves += 1
        if positions > self._reached:
            raise ValueError(f"position {positions - 1} is beyond the model's {self._reached}")

    def _made(self, table: torch.Tensor, signs: Sequence[int]) -> torch.Tensor:
        if signs:
            repeated = torch.tensor(signs, device=table.device).repeat(table.shape[1] // len(signs))
            table = table * repeated
        return table.to(self.device, self.dtype)

    def rows(self, number: int, positions: torch.Tensor) -> torch.Tensor:
        """[rows, numbers] for int64 positions [rows]."""
        return self._tables[number].index_select(0, positions)

    def read(self, operand: Operand, count: int = 0) -> Read:
        """Reads an operand as a tensor that broadcasts to [rows, count]; count: by default all of
        it."""
        count = count or operand.period * operand.each
        if operand.data is not None:
            numbers = operand.data
            if len(numbers) not in (1, count):
                numbers = numbers[_indices(operand, count)]
            numbers = numbers.to(self.device, self.dtype)
            return lambda now: numbers
        if operand.value is None:
            raise ValueError("an operand reads nothing")
        whole = self._value(operand.value)
        if operand.whole and operand.period == count:
            return whole
        if operand.period == 1 or (operand.each == 1 and operand.period == count):
            begin, end = operand.at, operand.at + operand.period
            return lambda now: whole(now)[:, begin:end]
        places = _indices(operand, count).to(self.device)
        return lambda now: whole(now).index_select(1, places)

    def _value(self, value: Value) -> Read:
        if value.kind == Kind.PLACE:
            number = self.add(value)
            return lambda now: now.by_position(number)
        return lambda now: now.values[value]


def _indices(operand: Operand, count: int) -> torch.Tensor:
    """Where the numbers of an operand are."""
    return operand.at + torch.arange(count, device="cpu") // operand.each % operand.period
