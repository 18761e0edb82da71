"""The description of a pass, in memory that does not move between passes."""

from __future__ import annotations

import ctypes

import numpy as np

from paceline.kernels.native import signatures as native


class PassBuffers:
    """Buffers for passes over at most `capacity` rows, whose layers all see the same slots.

    others: at most this many extra slots, beyond their stretches, for all rows together.

    tokens, positions, slots, keep: int64 [capacity], see `pl_pass`. first, count: int32 [capacity],
    stretches of slots. begins [capacity + 1], extra [others]: int32, see `SlotsSeen`; until they
    are written, rows see only their stretches. native: the pass, without its rows, its logits and
    what its program fills in.
    """

    def __init__(self, capacity: int, others: int) -> None:
        whole = np.zeros((4, capacity), dtype=np.int64)
        self.tokens, self.positions, self.slots, self.keep = whole
        self.first, self.count = np.zeros((2, capacity), dtype=np.int32)
        self.begins = np.zeros(capacity + 1, dtype=np.int32)
        self.extra = np.zeros(others, dtype=np.int32)
        seen = self.first, self.count, self.begins, self.extra
        self._seen = native.Seen(*(numbers.ctypes.data for numbers in seen))
        self.native = native.Pass(
            tokens=self.tokens.ctypes.data,
            positions=self.positions.ctypes.data,
            where=self.slots.ctypes.data,
            keep=self.keep.ctypes.data,
            seen=ctypes.addressof(self._seen),
        )
