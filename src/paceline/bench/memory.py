"""The most memory that a process has held."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["peak_meter"]

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


def _status(name: str) -> int | None:
    """The process's value of that name, from the system, in bytes."""
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
