"""Write steps as JSON and tensors, and read them back.

A model recorded once can run again without being opened: the steps, the tensors they read and the
tables of positions suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from paceline.kernels.blocks import BlockMatrix
from paceline.kernels.programs.steps import Function, Join, Kind, Lowered, Op, Operand, Step, Value

__all__ = ["StoredTables", "Tensors", "read_steps", "tensors_of", "written_steps"]

_PLAIN = ("count", "layer", "seen", "size", "heads", "key_heads", "number", "cap", "halves")
_TENSORS = ("order", "table", "bias")
_MOST_TABLES = 160 << 20  # bytes

Tensors = dict[str, torch.Tensor]


class StoredTables:
    """Tables of values by position that do not grow; see `PositionTables`."""

    def __init__(self, values: Sequence[Value], tables: Sequence[torch.Tensor]) -> None:
        self._values, self._tables = [*values], [*tables]

    def number_of(self, value: Value) -> int:
        """The number of a value's table."""
        return self._values.index(value)

    def extend_to(self, positions: int) -> list[torch.Tensor]:
        """Return the tables [positions or more, numbers], by their numbers."""
        return self._tables


def written_steps(
    steps: Lowered, positions: int | None, known: Mapping[str, torch.Tensor] | None = None
) -> tuple[dict[str, Any], Tensors] | None:
    """Write steps for `read_steps`: a JSON object, and tensors by name. None if the tables of all
    `positions` would be too large.

    Tensors that are one in memory are written once, under their name in `known` if they are there.
    """
    used = [value for step in steps.steps for value in step.reads() if value.kind == Kind.PLACE]
    places = [*dict.fromkeys(used)]
    numbers = sum(value.count for value in places)
    if positions is None or 4 * numbers * positions > _MOST_TABLES:
        return None
    writing = _Writing(known or {})
    for value in places:
        steps.tables.number_of(value)
    tables = steps.tables.extend_to(positions)
    return {
        "steps": [writing.step(step) for step in steps.steps],
        "logits": writing.value(steps.logits),
        "tables": [
            {
                "value": writing.value(value),
                "data": writing.tensor(tables[steps.tables.number_of(value)]),
            }
            for value in places
        ],
        "values": [[value.count, int(value.kind)] for value in writing.values],
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
    values = [reading.values[each["value"]] for each in record["tables"]]
    tables = [tensors[each["data"]] for each in record["tables"]]
    return Lowered(steps, reading.values[record["logits"]], StoredTables(values, tables))


class _Writing:
    def __init__(self, known: Mapping[str, torch.Tensor]) -> None:
        self.values: list[Value] = []
        self.tensors: Tensors = {}
        self._numbers: dict[Value, int] = {}
        self._names = {_place(tensor): name for name, tensor in known.items()}

    def value(self, value: Value) -> int:
        """Return a value's number."""
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values.append(value)
        return self._numbers[value]

    def tensor(self, tensor: torch.Tensor) -> str:
        """Return a tensor's name."""
        name = self._names.setdefault(_place(tensor), f"t{len(self._names)}")
        if name not in self.tensors:
            self.tensors[name] = tensor.detach().contiguous()
        return name

    def step(self, step: Step) -> dict[str, Any]:
        """Write a step, leaving out defaults."""
        usual = Step(step.op, step.count)
        found: dict[str, Any] = {
            name: getattr(step, name)
            for name in _PLAIN
            if name == "count" or getattr(step, name) != getattr(usual, name)
        }
        found |= {"op": step.op.name, "function": step.function.name, "join": step.join.name}
        if step.out is not None:
            found["out"] = self.value(step.out)
        found["of"] = [self.operand(operand) for operand in step.of]
        for name in _TENSORS:
            tensor = getattr(step, name)
            if tensor is not None:
                found[name] = self.tensor(tensor)
        if step.matrix is not None:
            matrix = step.matrix
            panels = self.tensor(matrix.panels)
            found["matrix"] = [matrix.format, panels, matrix.outputs, matrix.inputs]
        return found

    def operand(self, operand: Operand) -> dict[str, Any]:
        """Write an operand."""
        found: dict[str, Any] = {"period": operand.period, "at": operand.at, "each": operand.each}
        if operand.value is not None:
            found["value"] = self.value(operand.value)
        if operand.data is not None:
            found["data"] = self.tensor(operand.data)
        return found


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


class _Reading:
    def __init__(
        self, values: Sequence[Sequence[int]], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.values = [
            Value(number, count, Kind(kind)) for number, (count, kind) in enumerate(values, 1)
        ]
        self._tensors = tensors
        self._matrices: dict[str, BlockMatrix] = {}

    def step(self, record: Mapping[str, Any]) -> Step:
        """Read a step; its operands are values of earlier steps."""
        others: dict[str, Any] = {name: record[name] for name in _PLAIN if name in record}
        others |= {name: self._tensors[record[name]] for name in _TENSORS if name in record}
        if "matrix" in record:
            others["matrix"] = self._matrix(*record["matrix"])
        if "out" in record:
            others["out"] = self.values[record["out"]]
        step = Step(
            Op[record["op"]],
            of=[self._operand(each) for each in record["of"]],
            function=Function[record["function"]],
            join=Join[record["join"]],
            **others,
        )
        if step.out is not None:
            step.out.source = step
        return step

    def _operand(self, record: Mapping[str, Any]) -> Operand:
        value = self.values[record["value"]] if "value" in record else None
        data = self._tensors[record["data"]] if "data" in record else None
        return Operand(record["period"], value, data, record["at"], record["each"])

    def _matrix(self, format: str, panels: str, outputs: int, inputs: int) -> BlockMatrix:
        if panels not in self._matrices:
            known = self._tensors[panels]
            self._matrices[panels] = BlockMatrix.of_panels(format, known, outputs, inputs)
        return self._matrices[panels]
