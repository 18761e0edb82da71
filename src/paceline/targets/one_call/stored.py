"""Write steps as JSON and tensors, and read them back.

A model recorded once can run again without being opened: the steps, the tensors they read and the
tables of positions suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from paceline.kernels.blocks import BlockMatrix
from paceline.kernels.programs.steps import Function, Join, Kind, Lowered, Op, Operand, Step, Value

_MOST_TABLES = 160 << 20  # bytes

Tensors = dict[str, torch.Tensor]


@dataclass
class StoredTables:
    """Tables that do not grow; see `Tables`."""

    values: Sequence[Value]
    tables: list[torch.Tensor]

    def extend_to(self, positions: int) -> list[torch.Tensor]:
        """See `Tables`."""
        return self.tables


def written_steps(
    steps: Lowered, positions: int | None, known: Mapping[str, torch.Tensor] | None = None
) -> tuple[dict[str, Any], Tensors] | None:
    """Write steps for `read_steps`: a JSON object, and tensors by name. None if the tables of all
    `positions` would be too large. Tensors that are one in memory are written once, under their
    name in `known` if they are there."""
    writing, places = _Writing(known or {}), steps.tables.values
    written = [writing.step(step) for step in steps.steps]
    numbers = sum(value.count for value in places)
    if positions is None or 4 * numbers * positions > _MOST_TABLES:
        return None
    tables = zip(places, steps.tables.extend_to(positions), strict=True)
    return {
        "steps": written,
        "logits": steps.logits.number,
        "tables": [[value.number, writing.tensor(table)] for value, table in tables],
        "values": [[value.number, value.count, value.kind] for value in writing.values],
    }, writing.tensors


def tensors_of(steps: Lowered) -> list[torch.Tensor]:
    """The tensors that steps read, each once, without the tables of positions."""
    writing = _Writing({})
    for step in steps.steps:
        writing.step(step)
    return [*writing.tensors.values()]


def read_steps(record: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Lowered:
    """Invert `written_steps`. Raises KeyError, TypeError, ValueError or IndexError for anything
    else."""
    reading = _Reading(record["values"], tensors)
    steps = [reading.step(each) for each in record["steps"]]
    values = [reading.values[value] for value, _ in record["tables"]]
    tables = [tensors[name] for _, name in record["tables"]]
    return Lowered(steps, reading.values[record["logits"]], StoredTables(values, tables))


class _Writing:
    def __init__(self, known: Mapping[str, torch.Tensor]) -> None:
        self.tensors: Tensors = {}
        self.values: dict[Value, None] = {}  # in the order of their first use
        self._names = {_place(tensor): name for name, tensor in known.items()}

    def tensor(self, tensor: torch.Tensor) -> str:
        """Return a tensor's name."""
        name = self._names.setdefault(_place(tensor), f"t{len(self._names)}")
        if name not in self.tensors:
            self.tensors[name] = tensor.detach().contiguous()
        return name

    def step(self, step: Step) -> dict[str, Any]:
        """Write a step, leaving out defaults."""
        parts = {part.name: (getattr(step, part.name), part.default) for part in fields(step)}
        return {
            name: self._written(own)
            for name, (own, usual) in parts.items()
            if isinstance(own, torch.Tensor) or own != usual
        }

    def _written(self, part: Any) -> Any:
        """A step's attribute as JSON: tensors by name, values by number."""
        if isinstance(part, torch.Tensor):
            return self.tensor(part)
        if isinstance(part, Value):
            self.values[part] = None
            return part.number
        if isinstance(part, BlockMatrix):
            return [part.format, self.tensor(part.panels), part.outputs, part.inputs]
        if isinstance(part, Operand):
            of = map(self._written, (part.value, part.data))
            return [part.period, *of, part.at, part.each]
        return [*map(self._written, part)] if isinstance(part, list | tuple) else part


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


class _Reading:
    def __init__(
        self, values: Sequence[Sequence[int]], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.values = {number: Value(number, count, Kind(kind)) for number, count, kind in values}
        self._tensors = tensors
        self._matrices: dict[str, BlockMatrix] = {}
        self._readers: dict[str, Callable[[Any], Any]] = {
            "op": Op,
            "function": Function,
            "join": Join,
            "of": lambda of: [*map(self._operand, of)],
            "out": self.values.__getitem__,
            "matrix": self._matrix,
            **dict.fromkeys(("order", "table", "bias"), tensors.__getitem__),
        }

    def step(self, record: Mapping[str, Any]) -> Step:
        """Read a step; its operands are values of earlier steps."""
        read = self._readers
        return Step(**{n: read[n](each) if n in read else each for n, each in record.items()})

    def _operand(self, record: Sequence[Any]) -> Operand:
        period, value, data, *at = record
        of = None if value is None else self.values[value]
        return Operand(period, of, None if data is None else self._tensors[data], *at)

    def _matrix(self, record: Sequence[Any]) -> BlockMatrix:
        format, panels, outputs, inputs = record
        if panels not in self._matrices:
            known = self._tensors[panels]
            self._matrices[panels] = BlockMatrix.of_panels(format, known, outputs, inputs)
        return self._matrices[panels]
