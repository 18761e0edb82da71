"""Refusal, before loading, of a model that cannot fit into memory.

Only the parameters count, in the requested number format: the least that is needed. A higher
estimate would refuse models that can run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError
from paceline.json_files import parse_json
from paceline.kernels.native.control_groups import control_groups
from paceline.models.fingerprint import weight_files
from paceline.models.source import ModelSource

if TYPE_CHECKING:
    import torch

_LONGEST_HEADER = 100_000_000  # of a safetensors file, as in the library

# Parameters in these formats are converted to the requested one; others stay as stored.
_CONVERTED = frozenset({"F64", "F32", "F16", "BF16"})

# Where Linux reports a control group's memory limit and usage: version 2, then version 1; and what
# the names of its cached files begin with.
_GROUPS = (
    ("", "memory.max", "memory.current", ""),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def check_memory(
    source: ModelSource, needed: int | None, dtype: torch.dtype | None, device: torch.device
) -> None:
    """Raise ModelError if the model does not fit into the memory of its device, as far as known.

    needed: bytes that it takes. dtype: of its loaded weights; None if they stay as they are.
    """
    free = _free_on(device)
    if needed is None or free is None or needed <= free:
        return
    shorter = (
        "a smaller dtype (--dtype bfloat16)" if dtype and dtype.itemsize > 2 else "a smaller model"
    )
    form = f" in {str(dtype).removeprefix('torch.')}" if dtype else ""
    place = "" if device.type == "cpu" else f" on {device}"
    raise ModelError(
        f"{source.name} needs about {needed / 1e9:.1f} GB{form} "
        f"but only {free / 1e9:.1f} GB are free{place}: choose {shorter} or close other programs"
    )


def check_room(what: str, needed: int, instead: str) -> None:
    """Raise ModelError if `needed` bytes do not fit into main memory, as far as known.

    what, instead: for the message, e.g. "a copy of this model" and "use another method".
    """
    free = free_memory()
    if free is not None and needed > free:
        raise ModelError(
            f"{what} needs about {needed / 1e9:.2f} GB but only {free / 1e9:.2f} GB are free: "
            f"{instead} or close other programs"
        )


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes of main memory that this process can still get, or None if unknown.

    root: of the file system that reports it.
    """
    known = []
    kilobytes = _table(root / "proc/meminfo").get("MemAvailable:")
    if kilobytes is not None:
        known.append(kilobytes * 1024)
    # The process's own control group and its ancestors.
    for controller, limit, usage, prefix in _GROUPS:
        for folder in control_groups(root, controller):
            most, used = (_read(folder / name).strip() for name in (limit, usage))
            if most.isdecimal() and used.isdecimal():  # "max" is no limit
                # Cached files count as used, though they make room when it is needed.
                kept = _table(folder / "memory.stat")
                files = (kept.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
                known.append(int(most) - int(used) + sum(files))
    return max(0, min(known)) if known else None


def stored_tensors(source: ModelSource, revision: str | None) -> dict[str, dict[str, Any]]:
    """What a model's safetensors files say of their tensors; {} if no such files are found."""
    found: dict[str, dict[str, Any]] = {}
    for file in weight_files(source, revision):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LONGEST_HEADER:
                raise ModelError(f"the weights {file} are damaged: download or copy them again")
            found |= parse_json(stream.read(length))
    found.pop("__metadata__", None)
    return found


def bytes_needed(tensors: Mapping[str, dict[str, Any]], dtype: torch.dtype) -> int | None:
    """Bytes that stored tensors take in memory; None if there are none."""
    needed = 0
    for tensor in tensors.values():
        begin, end = tensor["data_offsets"]
        converted = tensor["dtype"] in _CONVERTED
        needed += math.prod(tensor["shape"]) * dtype.itemsize if converted else end - begin
    return needed if tensors else None


def _free_on(device: torch.device) -> int | None:
    if device.type == "cpu":
        return free_memory()
    if device.type != "cuda":
        return None
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    # Memory that PyTorch reserves but does not use is available to it.
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number, which a unit may follow, as a table."""
    lines = [line.split() for line in _read(path).splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _read(path: Path) -> str:
    """The text of a system file; "" if it is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
