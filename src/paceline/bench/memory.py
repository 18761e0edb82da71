"""What a process holds: now, at most during a stretch of work, and in tensors."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

__all__ = ["Tensors", "live_tensors", "peak_meter", "resident_bytes"]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

Meter = Callable[[], int | None]


def peak_meter(device: torch.device) -> Meter:
    """Begin to watch; the returned function says how many bytes were held at most since.

    On a GPU these are bytes of its memory, else of this process. None where nobody can say.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device)
    if sys.platform != "linux":
        return lambda: None
    try:
        _RESET.write_text(_RESET_PEAK)
    except OSError:
        return lambda: None
    return lambda: _status("VmHWM")


def resident_bytes() -> int | None:
    """Bytes of main memory that this process holds now; None where nobody can say."""
    return _status("VmRSS") if _STATUS.exists() else None


class Tensors(NamedTuple):
    """How many there are, and the bytes of memory behind them, each counted once; packed ones have
    none that could be seen."""

    number: int
    memory: int


def live_tensors() -> Tensors:
    """Those that anybody holds, after a collection of what nobody does."""
    gc.collect()
    # By type: some lazy objects answer `isinstance` by importing what they stand for.
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    # Packed weights and the like do not show what is behind them.
    storages = [one.untyped_storage() for one in found if one.layout is torch.strided]
    memory = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return Tensors(len(found), sum(memory.values()))


def _status(name: str) -> int | None:
    """Bytes that the system says of this process by that name."""
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
