"""Rows of tables by position, on the device that runs a program."""

from __future__ import annotations

import torch

from paceline.kernels.programs.steps import Tables, Value

__all__ = ["PositionRows"]

_FIRST = 4096  # positions


class PositionRows:
    """Tables on a device, some of them with changed signs.

    moves: how often they moved in memory, as they do when they grow.
    """

    def __init__(self, tables: Tables, device: torch.device, dtype: torch.dtype) -> None:
        self._source = tables
        self._device, self._dtype = device, dtype
        self._wanted: list[tuple[int, torch.Tensor | None]] = []
        self._tables: list[torch.Tensor] = []
        self._reached = 0
        self.moves = 0

    def add(self, value: Value, signs: torch.Tensor | None = None) -> int:
        """The number under which `rows` gives a value, multiplied by `signs`, which repeat."""
        number = self._source.number_of(value)
        for known, (of, with_signs) in enumerate(self._wanted):
            same = with_signs is signs or (
                signs is not None and with_signs is not None and torch.equal(signs, with_signs)
            )
            if of == number and same:
                return known
        self._wanted.append((number, signs))
        return len(self._wanted) - 1

    def reserve(self, positions: int) -> None:
        """Make the tables hold all positions below this. Raises ValueError if the model has fewer."""
        if positions <= self._reached or not self._wanted:
            return
        wanted = max(positions, 2 * self._reached, _FIRST)
        found = self._source.extend_to(wanted)
        self._tables = [self._made(found[number], signs) for number, signs in self._wanted]
        self._reached = min(map(len, self._tables))
        self.moves += 1
        if positions > self._reached:
            raise ValueError(f"position {positions - 1} is beyond the model's {self._reached}")

    def _made(self, table: torch.Tensor, signs: torch.Tensor | None) -> torch.Tensor:
        if signs is not None:
            table = table * signs.repeat(table.shape[1] // len(signs))
        return table.to(self._device, self._dtype)

    def rows(self, number: int, positions: torch.Tensor) -> torch.Tensor:
        """[rows, numbers] for int64 positions [rows]."""
        return self._tables[number].index_select(0, positions)
