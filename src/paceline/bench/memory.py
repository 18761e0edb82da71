"""Memory of a process: current, peak, and in tensors."""

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
    """Start measuring; the returned function gives the peak since then, in bytes.

    For a GPU, this is its own memory, else that of this process. None if unknown.
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
    """Bytes of main memory that this process holds now; None if unknown."""
    return _status("VmRSS") if _STATUS.exists() else None


class Tensors(NamedTuple):
    """Number of tensors, and bytes of their storage, each counted once; that of packed ones is
    not visible."""

    number: int
    memory: int


def live_tensors() -> Tensors:
    """Count the tensors that are still referenced, after a garbage collection."""
    gc.collect()
    # By type: `isinstance` makes some lazy objects import what they stand for.
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    # Packed weights and the like do not expose their storage.
    storages = [one.untyped_storage() for one in found if one.layout is torch.strided]
    memory = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return Tensors(len(found), sum(memory.values()))


def _status(name: str) -> int | None:
    """The process's value of that name, from the system, in bytes."""
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
