"""A preallocated key/value cache that can keep a tree path and drop the rest.

It plugs into any model of transformers through the ordinary `past_key_values`. Slot i of a row
holds position i of its text; a pass writes its new rows behind the committed ones, and a commit
gathers the accepted ones to the front. Rows of a batch may have different lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

__all__ = ["TreeCache"]

_GRAIN = 256  # capacities are multiples of this, so that growing is rare


class TreeCache(Cache):  # type: ignore[misc]
    """Keys and values of all layers, [batch, heads, capacity, head_dim] each.

    lengths: committed slots per row of the batch; only the owner of the cache changes them.
    """

    def __init__(self, num_layers: int) -> None:
        self.lengths: list[int] = []
        self._capacity = 0
        super().__init__(layers=[_Layer(self) for _ in range(num_layers)])

    def prepare(self, width: int, device: torch.device) -> int:
        """Make room for a pass of `width` new slots per row; returns the slots that it attends to.

        The next forward writes row b's keys to slots lengths[b] … lengths[b] + width - 1.
        """
        used = max(self.lengths) + width
        if used > self._capacity:
            # A quarter of spare room keeps the number of copies logarithmic in the length.
            self._capacity = -(-(used + used // 4) // _GRAIN) * _GRAIN
        ragged = len(set(self.lengths)) > 1
        starts = torch.tensor(self.lengths, device=device)[:, None] if ragged else None
        for layer in self.layers:
            layer.plan(self.lengths[0], starts, used, self._capacity)
        return used

    def commit(self, bases: Sequence[int], nodes: Sequence[Sequence[int]]) -> None:
        """Row b keeps its slots before bases[b] and, behind them, those of its accepted nodes.

        bases: slot of each row's first tree node; node i lies in slot bases[b] + i.
        """
        for row, (base, path) in enumerate(zip(bases, nodes, strict=True)):
            # A path that is a prefix of the tree, as every chain is, lies in place already.
            if list(path) != list(range(len(path))):
                for layer in self.layers:
                    layer.gather(row, base, path)
            self.lengths[row] = base + len(path)

    def select(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """New row b takes over the first lengths[b] slots of old row rows[b]."""
        if list(rows) != list(range(len(self.lengths))):
            for layer in self.layers:
                layer.select(rows)
        self.lengths = list(lengths)


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values; what and where to write was planned by the cache."""

    is_sliding = False
    keys: torch.Tensor | None
    values: torch.Tensor | None

    def __init__(self, cache: TreeCache) -> None:
        super().__init__()
        self._cache = cache
        self._start = 0
        self._starts: torch.Tensor | None = None
        self._used = 0
        self._capacity = 0

    def plan(self, start: int, starts: torch.Tensor | None, used: int, capacity: int) -> None:
        """Where the next `update` writes: one start for all rows, or `starts` [batch, 1]."""
        self._start, self._starts, self._used, self._capacity = start, starts, used, capacity

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for the first pass, or grow and carry over what is there."""
        old_keys, old_values = self.keys, self.values
        self.keys = _allocate(key_states, self._capacity)
        self.values = _allocate(value_states, self._capacity)
        if old_keys is not None and old_values is not None:
            self.keys[:, :, : old_keys.shape[2]] = old_keys
            self.values[:, :, : old_values.shape[2]] = old_values
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [batch, heads, width, head_dim]; returns [batch, heads, used, head_dim]."""
        if self.keys is None or self.keys.shape[2] < self._capacity:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        width = key_states.shape[2]
        if self._starts is None:
            self.keys[:, :, self._start : self._start + width] = key_states
            self.values[:, :, self._start : self._start + width] = value_states
        else:
            starts = self._starts.to(key_states.device)
            rows = torch.arange(len(starts), device=starts.device)[:, None]
            slots = starts + torch.arange(width, device=starts.device)
            self.keys[rows, :, slots] = key_states.transpose(1, 2)
            self.values[rows, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, : self._used], self.values[:, :, : self._used]

    def gather(self, row: int, base: int, path: Sequence[int]) -> None:
        """Move the slots base + path[i] of one row to base + i."""
        for states in (self.keys, self.values):
            if states is not None:
                slots = torch.tensor(path, device=states.device) + base
                states[row, :, base : base + len(path)] = states[row, :, slots]

    def select(self, rows: Sequence[int]) -> None:
        """Rebuild the batch from old rows."""
        if self.keys is not None and self.values is not None:
            index = torch.tensor(rows, device=self.keys.device)
            self.keys = self.keys.index_select(0, index)
            self.values = self.values.index_select(0, index)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys; asked only where no mask is given."""
        return self._used, 0

    def get_seq_length(self) -> int:
        """Committed slots of the longest row."""
        return max(self._cache.lengths, default=0)

    def get_max_length(self) -> int:
        """No maximum: the cache grows."""
        return -1

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` in earlier releases of transformers."""
        return -1


def _allocate(states: torch.Tensor, capacity: int) -> torch.Tensor:
    batch, heads, _, head_dim = states.shape
    # Zeros, not garbage: masked slots take part in the products, and 0 * NaN is NaN.
    return states.new_zeros(batch, heads, capacity, head_dim)
