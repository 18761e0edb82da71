"""The memory that methods need."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

Meter = Callable[[], int | None]
T = TypeVar("T")


class MemoryUse:
    """Memory that contenders take on a device: what they keep loaded, such as parts, and what a
    trial needs beyond all that was held before it. What two of them share counts for the first.

    shared: name of the contender whose caches all others use, too: what it leaves is not counted.
    loaded: bytes that making a contender took, by name.
    """

    def __init__(
        self, device: torch.device, shared: str, loaded: Mapping[str, int] | None = None
    ) -> None:
        self._device, self._shared = device, shared
        self._kept = Counter({**(loaded or {}), shared: 0})

    def trial(self, name: str) -> Meter:
        """Begin a trial; the returned function, called once at its end, gives the bytes it took."""
        peak, before = peak_meter(self._device), held(self._device)

        def taken() -> int | None:
            most, now = peak(), held(self._device)
            if most is None or before is None or now is None:
                return None
            kept = self._kept[name]
            if name != self._shared:
                self._kept[name] += max(0, now - before)
            return kept + max(0, most - before)

        return taken


def measure_load(device: torch.device, make: Callable[[], T]) -> tuple[T, int]:
    """What `make` makes, and by how many bytes it has increased what is held; 0 if unknown."""
    before = held(device)
    made, after = make(), held(device)
    return made, 0 if before is None or after is None else max(0, after - before)


def peak_meter(device: torch.device) -> Meter:
    """Start measuring; the returned function gives the peak since then, in bytes.

    For a GPU, this is its own memory, else that of this process. None if unknown.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device)
    try:
        _RESET.write_text(_RESET_PEAK)
    except OSError:  # only Linux has it, and not always
        return lambda: None
    return lambda: _status("VmHWM")


def held(device: torch.device) -> int | None:
    """Bytes in use now; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _status("VmRSS") if sys.platform == "linux" else None


def _status(name: str) -> int | None:
    """The process's value of that name, from the system, in bytes."""
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
