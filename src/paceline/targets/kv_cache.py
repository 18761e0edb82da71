"""A preallocated pool of keys and values, shared by all texts of a target.

It plugs into any model of transformers through the ordinary `past_key_values`. Each text has a
stretch of slots; its slot i holds position i. A pass writes its new rows after the committed ones,
and a commit moves the accepted ones to the front. The pool can also keep the model's last hidden
states, slot by slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from paceline.kernels.memory import lazy_zeros
from paceline.kernels.moving import SlotMover
from paceline.targets.cache_dtypes import CacheDtype

View = tuple[int, int] | torch.Tensor
"""The slots a pass attends to: a range (start, end), or indices [n]."""

_Where = int | torch.Tensor

# On the CPU, memory is taken when it is written, so address space is reserved for this many times
# the wanted slots: a pool that has to move holds up every text while it is copied.
_AHEAD = 8


class TreeCache(Cache):  # type: ignore[misc]
    """Keys and values of all layers, [1, heads, slots, head_dim] each.

    moves: how often they moved in memory.
    hidden_size: of the states given to `put_states`; 0 if none are kept.
    """

    def __init__(self, num_layers: int, hidden_size: int = 0) -> None:
        self.moves = 0
        self._plan = _Plan()
        super().__init__(layers=[_Layer(self._plan) for _ in range(num_layers)])
        # States are stored like keys and values, as one more layer with a single head.
        self._states = _Layer(self._plan)
        self._hidden_size, self.keeps_states = hidden_size, hidden_size > 0
        self._mover: SlotMover | None = None  # of the memory in use
        self._pool: torch.Tensor | None = None
        self._all: list[_Layer] = [*self.layers, self._states] if hidden_size else [*self.layers]

    @property
    def slot_bytes(self) -> int:
        """Bytes per slot; 0 before the first pass."""
        return sum(layer.slot_bytes for layer in self._all)

    @property
    def slots(self) -> int:
        """Slots of the pool."""
        return self._plan.slots

    def reserve(self, slots: int) -> None:
        """Grow the pool to at least `slots` slots. If that raises, it is as large as before."""
        if slots > self._plan.slots:
            self.moves += 1
            self._mover = None  # it refers to the old memory
            if self._pool is not None and len(self._pool) < slots:
                grown = _zeros(self._pool, slots, *self._pool.shape[1:])
                grown[: len(self._pool)] = self._pool
                self._use_pool(grown)
            for layer in self._all:
                layer.grow(slots)
            self._plan.slots = slots

    def restart(self) -> None:
        """Forget how large the pool was to be. It must have no memory yet."""
        self._plan.slots = 0

    def allocate(self, sizes: Mapping[int, tuple[int, int, int]], dtype: CacheDtype) -> None:
        """Allocate all layers as compiled passes read them. sizes: by layer: heads, key, value."""
        none = torch.empty(0, dtype=dtype.element, device="cpu")
        for number, (heads, *each) in sizes.items():
            keys, values = (none.new_empty(1, heads, 0, dtype.width(size)) for size in each)
            self._all[number].hold(keys, values)
        self._hold_states(none.float())

    def pool(self, heads: int, size: int, like: torch.Tensor) -> torch.Tensor:
        """Keys and values of all layers slot by slot, [slots, layers, 2, heads, size]; a slot moves
        as one piece. Allocated at first, with the dtype and device of `like`."""
        if self._pool is None:
            pool = _zeros(like, self._plan.slots, len(self.layers), 2, heads, size)
            self._hold_states(like)
            self._use_pool(pool)
        assert self._pool is not None
        return self._pool

    def _hold_states(self, like: torch.Tensor) -> None:
        if self.keeps_states:
            none = like.new_empty(1, 1, 0, self._hidden_size)
            self._states.hold(none, none[..., :0])

    def _apart(self) -> list[_Layer]:
        """The layers that are not parts of the pool."""
        return self._all if self._pool is None else self._all[len(self.layers) :]

    def _use_pool(self, pool: torch.Tensor) -> None:
        self._pool = pool
        for number, layer in enumerate(self.layers):
            layer.keys, layer.values = pool[:, number].permute(1, 2, 0, 3)[:, None]
            layer.is_initialized = True

    def tensors(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of all layers that have any."""
        pairs = ((each.keys, each.values) for each in self.layers)
        return [(keys, values) for keys, values in pairs if keys is not None and values is not None]

    def all_states(self) -> torch.Tensor:
        """All states, [slots, hidden]; there must be some, see `put_states`."""
        assert self._states.keys is not None
        return self._states.keys.view(-1, self._hidden_size)

    def direct(self, where: _Where, view: View) -> None:
        """Tell all layers where the next forward writes its rows, and what it attends to. where:
        the first row's slot if the others follow it, else the slots [rows]."""
        self._plan.where, self._plan.view = where, view

    def put_states(self, states: torch.Tensor) -> None:
        """Keep the hidden states [1, rows, hidden] of the last directed pass."""
        self._states.write(states[:, None], states[:, None, :, :0])

    def states(self, start: int, length: int) -> torch.Tensor:
        """States [length, hidden] of the slots from `start`; the next pass may change them."""
        size, states = self._hidden_size, self._states.keys
        if states is None:
            return torch.zeros(0, size, dtype=torch.float32, device="cpu")
        return states.as_strided((length, size), (size, 1), start * size)  # one view, not two

    def move(self, sources: Sequence[int], places: Sequence[int]) -> None:
        """Copy slots to other places, in order; no place may be a later source."""
        if self._mover is None:
            self._mover = SlotMover([each for layer in self._all for each in layer.held])
        if self._mover.can_move:
            self._mover.move(sources, places)
            return
        old, new = (torch.tensor(slots, device="cpu") for slots in (sources, places))
        if self._pool is not None:
            old, new = (each.to(self._pool.device, non_blocking=True) for each in (old, new))
            self._pool.index_put_((new,), self._pool.index_select(0, old))
        for layer in self._apart():
            old, new = layer.move(old, new)

    def take(self, other: TreeCache, source: int, place: int, length: int) -> None:
        """Copy a stretch of slots from another cache with the same kinds of layers, without its
        states if this one keeps none; or from elsewhere in this one, if the two do not overlap."""
        for layer, origin in zip(self._apart(), other._apart()):
            layer.take(origin, source, place, length)
        if self._pool is not None and other._pool is not None:
            self._pool[place : place + length] = other._pool[source : source + length]


@dataclass
class _Plan:
    """Of a pass, for all layers: see `TreeCache.direct`. slots: of the pool."""

    where: _Where = 0
    view: View = (0, 0)
    slots: int = 0


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values; the cache plans what is written where."""

    is_sliding = False
    keys: torch.Tensor | None
    values: torch.Tensor | None

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self._plan = plan

    @property
    def slot_bytes(self) -> int:
        """Bytes per slot."""
        return sum(states.nbytes // max(1, states.shape[2]) for states in self.held)

    @property
    def held(self) -> list[torch.Tensor]:
        """Keys and values, once there are any."""
        return [each for each in (self.keys, self.values) if each is not None and each.numel()]

    def grow(self, slots: int) -> None:
        """Make room for `slots` slots, if anything is allocated yet."""
        if self.keys is not None and self.values is not None:
            # One after the other, to hold old and new copies of only one at a time.
            self.keys = _grown(self.keys, self._plan.slots, slots)
            self.values = _grown(self.values, self._plan.slots, slots)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take shape and format of the first pass's states; `hold` then makes room for slots."""
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, heads, rows, head_dim]; return the view [1, heads, slots, head_dim]."""
        self.write(key_states, value_states)
        assert self.keys is not None and self.values is not None
        view = self._plan.view
        if isinstance(view, tuple):
            start, end = view
            return self.keys[:, :, start:end], self.values[:, :, start:end]
        view = view.to(self.keys.device)
        return self.keys.index_select(2, view), self.values.index_select(2, view)

    def hold(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make room for states like these in all slots."""
        if self.keys is None:
            self.lazy_initialization(key_states, value_states)
        self.grow(self._plan.slots)

    def write(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Write [1, heads, rows, head_dim] where `direct` said."""
        self.hold(key_states, value_states)
        assert self.keys is not None and self.values is not None
        where = self._plan.where
        if isinstance(where, int):
            end = where + key_states.shape[2]
            self.keys[:, :, where:end] = key_states
            self.values[:, :, where:end] = value_states
        else:
            where = where.to(key_states.device)
            self.keys.index_copy_(2, where, key_states)
            self.values.index_copy_(2, where, value_states)

    def move(self, old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy these slots. Returns the indices on this layer's device, so that the next layer,
        usually on the same one, need not fetch them."""
        for states in self.held:
            old = old.to(states.device, non_blocking=True)
            new = new.to(states.device, non_blocking=True)
            states.index_copy_(2, new, states.index_select(2, old))
        return old, new

    def take(self, other: _Layer, source: int, place: int, length: int) -> None:
        """Copy a stretch of slots from such a layer."""
        for states, theirs in zip(self.held, other.held, strict=True):
            states[:, :, place : place + length] = theirs[:, :, source : source + length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys; used only if no mask is given."""
        return self._plan.slots, 0

    def get_seq_length(self) -> int:
        """Used only if no positions are given."""
        return 0

    def get_max_length(self) -> int:
        """No maximum: the cache grows."""
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier releases of transformers


@torch.inference_mode(False)  # else nothing could write to them outside of that mode
def _zeros(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return like.new_zeros(shape)


@torch.inference_mode(False)
def _allocate(states: torch.Tensor, slots: int) -> torch.Tensor:
    _, heads, _, head_dim = states.shape
    # Zeros, not garbage: masked slots enter the products, and 0 * NaN is NaN.
    if states.device.type != "cpu":
        return _zeros(states, 1, heads, slots, head_dim)
    for ahead in (_AHEAD, 1):
        with suppress(OSError):
            return lazy_zeros((1, heads, ahead * slots, head_dim), states.dtype)
    try:
        return _zeros(states, 1, heads, slots, head_dim)
    except RuntimeError as error:  # as torch says it on a GPU, so that closed texts make room
        raise torch.OutOfMemoryError(f"there is no memory for {slots} slots of a cache") from error


def _grown(states: torch.Tensor, known: int, slots: int) -> torch.Tensor:
    """Return a tensor with room for `slots` slots that keeps the first `known`; others were never
    written."""
    if slots <= states.shape[2]:
        return states
    grown, kept = _allocate(states, slots), states[:, :, :known]
    grown[:, :, : kept.shape[2]] = kept
    return grown
