"""Steps with places in memory, ready for the calls that run them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.kernels.native import signatures as native
from paceline.kernels.programs.steps import Kind, Lowered, Op, Operand, Step, Tables, Value

_OF_ROWS, _OF_KEPT = -1, -2  # PL_OF_ROWS, PL_OF_KEPT
_LINE = 16  # numbers; 64 bytes
_MOST_SEEN = 64  # slots that a row sees beyond its stretch
_SAME = (
    *("op", "function", "join", "layer", "seen", "halves"),
    *("count", "size", "heads", "key_heads", "number", "cap"),
)
"""What `Step` and `pl_step` call by the same name."""


@dataclass(frozen=True)
class CacheLayer:
    """One layer's keys and values [1, heads, slots, elements of a head], see `CacheDtype`."""

    keys: torch.Tensor
    values: torch.Tensor

    def as_native(self) -> native.Layer:
        """Addresses and strides in bytes."""
        both = self.keys, self.values
        strides = [each * of.element_size() for of in both for each in of.stride()[1:3]]
        return native.Layer(*(of.data_ptr() for of in both), *strides)


class TableAddresses:
    """Where the library finds tables of positions.

    reached: they hold all positions below this.
    """

    def __init__(self, source: Tables) -> None:
        self._source = source
        self._tables: Sequence[torch.Tensor] = ()  # held, as the addresses are theirs
        self.reached = -1

    def extend(self, one: native.Pass | native.Chimera | native.Eagle, positions: int) -> None:
        """Let `one` find the tables, extended to `positions`."""
        if positions > self.reached:
            tables = self._source.extend_to(positions)
            count = max(1, len(tables))
            addresses = (ctypes.c_void_p * count)(*(each.data_ptr() for each in tables))
            self._strides = (ctypes.c_int64 * count)(*(each.stride(0) for each in tables))
            self._tables, self._addresses = tables, addresses
            # Last, in case of an interruption. Without tables, positions have no limit.
            self.reached = min((len(each) for each in tables), default=sys.maxsize)
        one.tables = ctypes.addressof(self._addresses)
        one.table_strides = ctypes.addressof(self._strides)


class PassBuffers:
    """Buffers for passes over at most `capacity` rows, whose layers all see the same slots.

    tokens, positions, slots, keep: int64 [capacity], see `pl_pass`. first, count: int32 [capacity],
    stretches of slots. begins [capacity + 1], extra [64 * capacity]: int32, see `SlotsSeen`; until
    they are written, rows see only their stretches. native: the pass, without its rows, its logits
    and what its program fills in.
    """

    def __init__(self, capacity: int) -> None:
        whole = np.zeros((4, capacity), dtype=np.int64)
        self.tokens, self.positions, self.slots, self.keep = whole
        self.first, self.count = np.zeros((2, capacity), dtype=np.int32)
        self.begins = np.zeros(capacity + 1, dtype=np.int32)
        self.extra = np.zeros(_MOST_SEEN * capacity, dtype=np.int32)
        seen = self.first, self.count, self.begins, self.extra
        self._seen = native.Seen(*(numbers.ctypes.data for numbers in seen))
        self.native = native.Pass(
            tokens=self.tokens.ctypes.data,
            positions=self.positions.ctypes.data,
            where=self.slots.ctypes.data,
            keep=self.keep.ctypes.data,
            seen=ctypes.addressof(self._seen),
        )


class Program:
    """Runs lowered steps.

    layers: heads, size of a key and size of a value, by layer of the cache. vocabulary: logits per
    row. address, count: of its steps. width: numbers per row that it needs memory for.
    """

    def __init__(self, lowered: Lowered) -> None:
        self._lowered = lowered  # holds what steps point to, except for matrices that move
        self._panels = [step.matrix.panels for step in lowered.steps if step.matrix is not None]
        self._places, self._width = _find_places(lowered.steps, lowered.logits)
        self._steps = (native.Step * len(lowered.steps))(*map(self._native, lowered.steps))
        self.vocabulary = lowered.logits.count
        stores = [step for step in lowered.steps if step.op == Op.STORE]
        self.layers = {each.layer: (each.key_heads, each.size, each.count) for each in stores}
        self.address, self.count = ctypes.addressof(self._steps), len(self._steps)
        self.width = max(1, self._width[Kind.ROWS])
        self._arenas = {
            kind: torch.empty(1, dtype=torch.float32, device="cpu")
            for kind in (Kind.ROWS, Kind.KEPT)
        }
        self._tables = TableAddresses(lowered.tables)
        self.use_cache(())

    def use_cache(
        self, layers: Sequence[CacheLayer], kind: int = 0, states: torch.Tensor | None = None
    ) -> None:
        """Set where keys and values are and in which format, see `CacheDtype.number`; 0 is float32.
        states: [slots, numbers], where states go, if anywhere."""
        self._cache_kind = kind
        self._states = (None, 0) if states is None else (states.data_ptr(), states.stride(0))
        self._cache = (native.Layer * len(layers))(*(each.as_native() for each in layers))

    def ready(self, one: native.Pass, positions: int) -> tuple[int, int, int]:
        """Fill in a pass's tables, cache and memory for values; all rows are at positions below
        `positions`. Returns the first arguments of `pl_run` and its like."""
        self._tables.extend(one, positions)
        one.table_rows = self._tables.reached
        one.layers, one.cache_kind = ctypes.addressof(self._cache), self._cache_kind
        one.states, one.states_stride = self._states
        one.arena = self._arena(Kind.ROWS, one.rows)
        one.arena_of_kept = self._arena(Kind.KEPT, one.kept)
        return self.address, self.count, ctypes.addressof(one)

    def _arena(self, kind: Kind, rows: int) -> int:
        """The address of memory for the values of `rows` rows."""
        needed = self._width[kind] * rows
        if self._arenas[kind].numel() < needed:
            self._arenas[kind] = torch.empty(needed, dtype=torch.float32, device="cpu")
        return self._arenas[kind].data_ptr()

    def _native(self, step: Step) -> native.Step:
        same = {name: getattr(step, name) for name in _SAME}
        made = native.Step(**same, format=-1, out_at=step.at)
        for name, operand in zip(("input", "other", "third"), step.of, strict=False):
            setattr(made, name, self._operand(operand))
        if step.out is not None:
            made.of_kept = step.out.kind == Kind.KEPT
            made.out_buffer = self._places.get(step.out, -1)  # logits have no place
            made.out_stride = step.out.count
        if step.order is not None:
            made.order = step.order.data_ptr()
        if step.matrix is not None:
            made.format, made.panels, made.outputs, made.inputs = step.matrix.native
        if step.table is not None:
            made.panels, made.outputs = step.table.data_ptr(), len(step.table)
        if step.op == Op.GIVEN:
            made.outputs = step.size
        if step.bias is not None:
            made.bias = step.bias.data_ptr()
        return made

    def _operand(self, operand: Operand) -> native.Operand:
        value = operand.value
        made = native.Operand(
            table=_OF_ROWS, at=operand.at, period=operand.period, each=operand.each
        )
        if operand.data is not None:
            made.data = operand.data.data_ptr()
        elif value is not None and value.kind == Kind.PLACE:
            made.table = self._lowered.tables.values.index(value)
        elif value is not None:
            made.table = _OF_KEPT if value.kind == Kind.KEPT else _OF_ROWS
            made.buffer, made.stride = self._places[value], value.count
        return made


def _find_places(steps: Sequence[Step], logits: Value) -> tuple[dict[Value, int], dict[Kind, int]]:
    """Where the values of `steps` begin, in numbers of a row, and how many each kind needs; they
    share as little memory as possible. logits: stored elsewhere.

    Between two products, all steps run on one row before the next row: memory is reused only from
    one such stretch to the next.
    """
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for stretch, step in _by_stretch(steps):
        if step.out is not None:
            first.setdefault(step.out, stretch)
        # A product's rows are rounded in the stretch before it.
        last.update(dict.fromkeys(step.reads(), stretch))
    places: dict[Value, int] = {}
    width = dict.fromkeys(Kind, 0)
    taken: dict[Kind, list[tuple[int, int, int]]] = {kind: [] for kind in Kind}
    for value, begin in first.items():  # in the order of steps
        if value is logits:
            continue
        end = max(last.get(value, begin), begin)
        size = -(-value.count // _LINE) * _LINE
        held = sorted(each for each in taken[value.kind] if each[2] >= begin)
        place = 0
        for at, after, _ in held:
            if at - place >= size:
                break
            place = max(place, after)
        taken[value.kind] = [*held, (place, place + size, end)]
        places[value] = place
        width[value.kind] = max(width[value.kind], place + size)
    return places, width


def _by_stretch(steps: Sequence[Step]) -> Iterator[tuple[int, Step]]:
    """Steps with the number of the stretch that each belongs to."""
    stretch = 0
    for step in steps:
        alone = step.op in (Op.PRODUCT, Op.ATTEND, Op.SELECT)
        stretch += alone
        yield stretch, step
        stretch += alone
