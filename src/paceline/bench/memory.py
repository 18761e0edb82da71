"""The most memory that a stretch of work holds."""

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
    return _peak_resident


def _peak_resident() -> int | None:
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
