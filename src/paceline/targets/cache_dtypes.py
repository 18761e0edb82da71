"""The formats of keys and values in the cache, as one table."""

from __future__ import annotations

from dataclasses import dataclass

import torch

FLOAT32 = "float32"
_SCALED = 32  # numbers per scale, PL_SCALED
_SCALE_BYTES = 4


@dataclass(frozen=True)
class CacheDtype:
    """A format. number: in `enum pl_kind` of native/src/tier.h. element: of the tensors. scaled: a
    head's numbers are followed by a scale for each 32 of them, in the same tensor."""

    number: int
    element: torch.dtype
    scaled: bool = False

    def width(self, size: int) -> int:
        """Elements per slot for a head of `size` numbers."""
        return size + _SCALE_BYTES * -(-size // _SCALED) if self.scaled else size


CACHE_DTYPES = {
    FLOAT32: CacheDtype(0, torch.float32),
    "float16": CacheDtype(2, torch.float16),
    "int8": CacheDtype(3, torch.int8, scaled=True),
}
"""Formats for the cache of compiled passes, by name."""
