"""Tables of positions, for drafts that run in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.kernels.native import signatures as native

if TYPE_CHECKING:
    import torch

    from paceline.kernels.programs.builder import Rotary

__all__ = ["TableAddresses"]


class TableAddresses:
    """Where the library finds the tables of `rotary`."""

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._tables: Sequence[torch.Tensor] = ()

    def extend(self, one: native.Chimera | native.Eagle, positions: int) -> None:
        """Extend the tables of `one` to `positions`."""
        tables = self._rotary.extend_to(positions)
        if tables is self._tables:
            return
        self._tables = tables
        self._addresses = (ctypes.c_void_p * len(tables))(*(each.data_ptr() for each in tables))
        self._strides = (ctypes.c_int64 * len(tables))(*(each.stride(0) for each in tables))
        one.tables = ctypes.addressof(self._addresses)
        one.table_strides = ctypes.addressof(self._strides)
