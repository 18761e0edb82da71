"""Tables of what a model computes from positions alone: cosines and sines of rotary embeddings, or
position embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.kernels.programs.steps import Tables, Value
from paceline.targets.one_call.recording import ROWS, Node, UnfitError

_GRAIN = 256


class PositionTables(Tables):
    """Tables of values by position, made by replaying the model's own operators.

    positions: as recorded. limit: how many there are. nodes: the operators. defined: tensors of the
    recording that show values, with the axes of their rows. values: those that have tables.
    """

    def __init__(self, positions: torch.Tensor, limit: int | None) -> None:
        self._positions, self._limit = positions, limit
        self.nodes: list[Node] = []
        self.defined: dict[Value, tuple[torch.Tensor, int]] = {}
        self.values: Sequence[Value] = ()
        self._tables: list[torch.Tensor] = []

    def extend_to(self, positions: int) -> list[torch.Tensor]:
        length = -(-positions // _GRAIN) * _GRAIN
        length = min(length, self._limit or length)
        tables = self._tables  # threads share them: another one may replace them meanwhile
        if not tables or length > len(tables[0]):
            self._tables = tables = self._grown(tables, length)
        return tables

    def _grown(self, known: list[torch.Tensor], length: int) -> list[torch.Tensor]:
        """Extend tables to `length` positions, written in place, as they may be long."""
        begin = len(known[0]) if known else 0
        grown: list[torch.Tensor] = []
        for first in range(begin, length, ROWS):
            end = min(first + ROWS, length)
            rows = self._played(first, length - 1)
            if not grown:
                grown = [each.new_empty(length, each.shape[1]) for each in rows]
                for table, old in zip(grown, known):
                    table[:begin] = old
            for table, each in zip(grown, rows, strict=True):
                table[first:end] = each[: end - first]
        return grown

    @torch.no_grad()
    def _played(self, first: int, last: int) -> list[torch.Tensor]:
        """Compute the values at positions from `first` on, clamped to `last`, [ROWS, numbers]
        each."""
        at = torch.arange(first, first + ROWS, device="cpu").clamp(max=last)[None]
        known = {id(self._positions): at}
        try:
            for node in self.nodes:
                now = node.replay(node.what, lambda tensor: known.get(id(tensor), tensor))
                known.update(zip(map(id, node.outputs), now, strict=True))
        except (RuntimeError, IndexError) as error:
            raise UnfitError(f"its position values cannot be tabulated ({error})") from error
        found = (self.defined[value] for value in self.values)
        return [
            known[id(output)].movedim(axis, 0).reshape(ROWS, -1).float() for output, axis in found
        ]
