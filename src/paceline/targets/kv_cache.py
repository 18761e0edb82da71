"""A preallocated key/value cache that can keep a tree path and drop the rest.

It can keep the model's last hidden states beside keys and values, slot by slot. It plugs into any model of transformers through the ordinary `past_key_values`. Slot i of a row
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

_Where = int | tuple[torch.Tensor, torch.Tensor]


class TreeCache(Cache):  # type: ignore[misc]
    """Keys and values of all layers, [batch, heads, capacity, head_dim] each.

    lengths: committed slots per row of the batch; only the owner of the cache changes them.
    moves: how often the keys and values went to another place in memory.
    hidden_size: of the states that `put_states` will bring; 0 where none are kept.
    """

    def __init__(self, num_layers: int, hidden_size: int = 0) -> None:
        self.lengths: list[int] = []
        self.moves = 0
        self._capacity = 0
        super().__init__(layers=[_Layer(self) for _ in range(num_layers)])
        # States go the way of keys and values, as those of one more layer with a single head.
        self._states = _Layer(self)
        self._hidden_size = hidden_size
        self._all = [*self.layers, self._states] if hidden_size else self.layers

    def reserve(self, slots: int) -> None:
        """Make room for so many slots per row; layers move when the next pass reaches them."""
        if slots > self._capacity:
            # A quarter of spare room keeps the number of copies logarithmic in the length.
            self._capacity = -(-(slots + slots // 4) // _GRAIN) * _GRAIN
            self.moves += 1

    def direct(self, where: _Where, slots: int) -> None:
        """Tell all layers where the next forward writes, and how many slots it attends to.

        where: the slot of its first row, if that is the same for all texts, or [batch, 1] texts
        and [batch, width] slots, which a captured graph will read anew each time.
        """
        for layer in self._all:
            layer.direct(where, slots, self._capacity)

    def put_states(self, states: torch.Tensor) -> None:
        """Keep the hidden states [batch, width, hidden] of the pass that was directed last."""
        row = states[:, None]
        self._states.update(row, row[..., :0])

    def states(self, row: int) -> torch.Tensor:
        """[lengths[row], hidden]: a view that the next pass or commit may change."""
        if self._states.keys is None:
            return torch.zeros(0, self._hidden_size)
        return self._states.keys[row, 0, : self.lengths[row]]

    def commit(self, bases: Sequence[int], nodes: Sequence[Sequence[int]]) -> None:
        """Row b keeps its slots before bases[b] and, behind them, those of its accepted nodes.

        bases: slot of each row's first tree node; node i lies in slot bases[b] + i.
        """
        for row, (base, path) in enumerate(zip(bases, nodes, strict=True)):
            # A path that is a prefix of the tree, as every chain is, lies in place already.
            if list(path) != list(range(len(path))):
                slots: torch.Tensor = torch.tensor(path) + base
                for layer in self._all:
                    slots = layer.gather(row, slots, base)
            self.lengths[row] = base + len(path)

    def select(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """New row b takes over the first lengths[b] slots of old row rows[b]."""
        if list(rows) != list(range(len(self.lengths))):
            self.moves += 1
            for layer in self._all:
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
        self._where: _Where = 0
        self._slots = 0
        self._capacity = 0

    def direct(self, where: _Where, slots: int, capacity: int) -> None:
        """What the next `update` does; see `TreeCache.direct`."""
        self._where, self._slots, self._capacity = where, slots, capacity

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
        """Write [batch, heads, width, head_dim]; returns [batch, heads, slots, head_dim]."""
        if self.keys is None or self.keys.shape[2] < self._capacity:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        if isinstance(self._where, int):
            end = self._where + key_states.shape[2]
            self.keys[:, :, self._where : end] = key_states
            self.values[:, :, self._where : end] = value_states
        else:
            texts, slots = (index.to(key_states.device) for index in self._where)
            self.keys[texts, :, slots] = key_states.transpose(1, 2)
            self.values[texts, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, : self._slots], self.values[:, :, : self._slots]

    def gather(self, row: int, slots: torch.Tensor, base: int) -> torch.Tensor:
        """Move these slots of one row to base, base + 1, …; returns `slots` where they are now,
        so that the next layer, which is mostly on the same device, need not fetch them."""
        for states in (self.keys, self.values):
            if states is not None:
                slots = slots.to(states.device, non_blocking=True)
                states[row, :, base : base + len(slots)] = states[row, :, slots]
        return slots

    def select(self, rows: Sequence[int]) -> None:
        """Rebuild the batch from old rows."""
        if self.keys is not None and self.values is not None:
            index = torch.tensor(rows, device=self.keys.device)
            self.keys = self.keys.index_select(0, index)
            self.values = self.values.index_select(0, index)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys; asked only where no mask is given."""
        return self._slots, 0

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
