"""Attention on a CPU for rows that each see their own slots of one cache: texts side by side, and
nodes of trees.

It runs in the library's own kernel, see `native/src/attend.h`: a row's result depends neither on
where its slots are nor on the other rows, so a token gets the same bits in a tree and in plain
decoding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.kernels.native.calls import kernels
from paceline.kernels.native.signatures import Attention

Ints = NDArray[np.int32]

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Formats of keys and values, by the library's numbers."""

_MOST_TOGETHER = 48  # heads that share keys and values, PL_HEADS_OF_A_RANGE in the library


def can_attend(heads: int, kv_heads: int) -> bool:
    """Whether a call of the library takes so many heads of queries, and of keys and values."""
    return heads <= _MOST_TOGETHER * kv_heads


class SlotsSeen:
    """What the rows of a pass see.

    first, count: [rows] int32, a stretch of slots. extra: each row's other slots, ascending and
    after the stretch.
    """

    def __init__(self, first: Ints, count: Ints, extra: Sequence[Sequence[int]]) -> None:
        begins = np.array([0, *accumulate(map(len, extra))], dtype=np.int32)
        others = np.array([*chain.from_iterable(extra), 0], dtype=np.int32)
        self._held = first, count, begins, others

    @cached_property
    def _call(self) -> Attention:
        first, count, begins, others = (numbers.ctypes.data for numbers in self._held)
        rows = len(self._held[0])
        return Attention(rows=rows, first=first, count=count, extra_begin=begins, extra=others)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        cap: float = 0.0,
    ) -> torch.Tensor:
        """Query [heads, rows, size], key [key heads, slots, size], value [key heads, slots, value
        size] -> [rows, heads, value size], in the format of the query.

        cap: if not 0, scores are cap x tanh(score / cap). Keys and values share one format of
        `KINDS`; the numbers of a slot are contiguous.

        Raises ValueError for rows that see nothing, slots out of order, or different formats.
        """
        if key.dtype != value.dtype:
            raise ValueError(f"keys are in {key.dtype}, but values in {value.dtype}")
        if can_attend(len(query), len(key)):
            return self._attend(query, key, value, scale, cap)
        (heads, rows, size), kv_heads = query.shape, len(key)
        shared = query.reshape(kv_heads, heads // kv_heads, rows, size)
        found = [
            self._attend(some.flatten(0, 1), key, value, scale, cap).view(rows, kv_heads, -1)
            for some in torch.split(shared, _MOST_TOGETHER, dim=1)
        ]
        return torch.cat(found, dim=2).view(rows, heads, value.shape[2])

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, cap: float
    ) -> torch.Tensor:
        asked = query.float()
        if asked.stride(2) != 1:
            asked = asked.contiguous()
        (heads, rows, size), wide = asked.shape, value.shape[2]
        out = torch.empty(rows, heads, wide, dtype=torch.float32, device="cpu")
        call = self._call
        call.heads, call.key_heads, call.size, call.value_size = heads, len(key), size, wide
        call.query, (call.query_head, call.query_row, _) = asked.data_ptr(), asked.stride()
        width = key.element_size()
        call.keys, call.values = key.data_ptr(), value.data_ptr()
        call.key_head, call.key_slot = key.stride(0) * width, key.stride(1) * width
        call.value_head, call.value_slot = value.stride(0) * width, value.stride(1) * width
        call.out, call.kind, call.scale, call.cap = out.data_ptr(), KINDS[key.dtype], scale, cap
        kernels().attend(ctypes.addressof(call))
        return out if query.dtype == torch.float32 else out.to(query.dtype)
