"""Projections that read the same input, run as one product: query-key-value, gate-up.

A trial pass finds them, see `paceline.targets.linear_watch`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from paceline.kernels.linear import FastLinear


class SharedInput(nn.Module):
    """One product for several projections of one tensor.

    linear: the projections' weights, one below the other.
    sizes: outputs of each.
    """

    def __init__(self, linear: FastLinear, sizes: Sequence[int]) -> None:
        super().__init__()
        self.linear = linear
        self.sizes = tuple(sizes)
        # Read for every projection of every layer, so kept out of the module's slow registry.
        self._run = linear.forward
        self._last = len(self.sizes) - 1
        # An input and its projections, in one tuple: threads may run the model at once.
        self._held: tuple[torch.Tensor | None, Sequence[torch.Tensor]] = None, ()

    def project(self, rows: torch.Tensor, part: int) -> torch.Tensor:
        """The `part`-th projection of rows [..., in_features]."""
        own = self.__dict__  # a module's own __setattr__ takes microseconds
        known, outputs = own["_held"]
        if known is not rows:
            outputs = torch.split_with_sizes(self._run(rows), self.sizes, -1)
            own["_held"] = rows, outputs
        if part == self._last:
            own["_held"] = None, ()  # nothing outlives the pass
        output: torch.Tensor = outputs[part]
        return output


class Projection(nn.Module):
    """Replaces number `part` of several projections of the same input."""

    def __init__(self, shared: SharedInput, part: int) -> None:
        super().__init__()
        self.shared = shared
        self.in_features = shared.linear.in_features
        self.out_features = shared.sizes[part]
        self.part = part
        self._project = shared.project

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        return self._project(rows, self.part)
