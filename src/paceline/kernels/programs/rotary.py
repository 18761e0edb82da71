"""Rotary positions of heads whose halves are rotated, for tensors and for programs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.kernels.programs.steps import Kind, Tables, Value


class Rotary(Tables):
    """Rotary positions for heads of `size` numbers; programs read them as `Tables`.

    On a CPU, angles are computed once per place: they are the same for every row, and would take a
    fifth of the time of drafting a level. On a GPU, to ask for the largest place would take longer.
    """

    def __init__(self, size: int, base: float) -> None:
        self.size = size
        self.cosines = Value(-1, size, Kind.PLACE)
        self.sines = Value(-2, size, Kind.PLACE)
        self.values: Sequence[Value] = (self.cosines, self.sines)
        steps = torch.arange(size // 2, dtype=torch.float32, device="cpu")
        self._speeds = base ** (-steps / (size // 2))
        # For tensors, [places, 2, size / 2], and the same for programs.
        self._tables = self._speeds.new_empty(0, 2, size // 2), list[torch.Tensor]()

    def __call__(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Rotate rows [batch, heads, n, size] by places int64 [batch, n]."""
        cos, sin = self._of(places).to(rows)[:, None].unbind(-2)
        one, other = rows.chunk(2, dim=-1)
        return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)

    def extend_to(self, positions: int) -> list[torch.Tensor]:
        return self._with(positions)[1]

    def _of(self, places: torch.Tensor) -> torch.Tensor:
        """Cosines and sines, [batch, n, 2, size / 2]."""
        if places.device.type != "cpu":
            return self._at(places)
        return self._with(int(places.max()))[0][places]

    def _with(self, place: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        tables = self._tables  # threads share them: another one may replace them meanwhile
        if len(tables[0]) <= place:
            count = max(place + 1, 2 * len(tables[0]), 256)
            found = self._at(torch.arange(count, device="cpu"))
            self._tables = tables = found, [*found.repeat(1, 1, 2).unbind(1)]
        return tables

    def _at(self, places: torch.Tensor) -> torch.Tensor:
        self._speeds = self._speeds.to(places.device)
        angles = places[..., None] * self._speeds
        return torch.stack([angles.cos(), angles.sin()], dim=-2)
