"""Numbers that are given to the C library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any


class Buffer:
    """Memory for numbers of one C type; it grows as needed."""

    def __init__(self, number: Any) -> None:
        self._number = number
        self._held = (number * 64)()

    def put(self, numbers: Sequence[float]) -> int:
        """Copy these numbers; returns their address, which is valid until the next call."""
        count = len(numbers)
        if count > len(self._held):
            self._held = (self._number * (2 * count))()
        self._held[:count] = list(numbers)
        return ctypes.addressof(self._held)
