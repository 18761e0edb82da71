"""Where chains of guesses end, in the C library's form."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

from paceline.kernels.native import signatures as native


class NativeEnd:
    """Memory for one end."""

    def __init__(self) -> None:
        self._made = native.ChainEnd()
        self._end: Any = None  # held for the library

    def address(self, end: Any) -> int:
        """The library's copy of a `paceline.chains.ChainEnd`, which kernels cannot import; valid
        until the next call."""
        made, chances = self._made, end.chances
        made.share, made.path_chance, made.trust = end.share, end.path_chance, chances.trust
        made.low, made.high, made.columns = chances.low, chances.high, chances.columns
        made.least, made.borders = _address(end.least), _address(chances.borders)
        made.lines = _address(chances.lines)
        made.rows = _address(chances.rows) + end.before * chances.rows.itemsize
        self._end = end
        return ctypes.addressof(made)


def _address(numbers: array[float] | array[int]) -> int:
    return numbers.buffer_info()[0]
