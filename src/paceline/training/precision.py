"""What products of float32 are made of while something learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.errors import UsageError

__all__ = ["forward_in", "products_in", "usable_precision"]

_FAST = {"cpu": "bf16", "cuda": "tf32"}


def usable_precision(wanted: str, device: torch.device) -> str:
    """float32 or bfloat16, for "auto" what is faster here.

    Raises UsageError for bfloat16 where the processor does not multiply it.
    """
    backends: Any = torch.backends
    if device.type == "cpu":
        can = backends.mkldnn.is_available() and (
            torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        )
    else:
        can = True
    if wanted == "bfloat16" and not can:
        raise UsageError("this processor has no products in bfloat16: leave --precision at auto")
    return wanted if wanted != "auto" else "bfloat16" if can else "float32"


def forward_in(precision: str, device: torch.device) -> torch.autocast:
    """Layers of what learns take and give bfloat16 inside, on a processor that multiplies it: casting
    a weight once a step and no result back takes less time than a product does. Losses are made
    outside, of float32."""
    halves = precision == "bfloat16" and device.type == "cpu"
    return torch.autocast(device.type, torch.bfloat16, enabled=halves)


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Matrix products of float32 tensors are made of bfloat16 (on a GPU of TF32) inside, and added up
    in float32; everything else stays float32. The setting is torch's, for the whole process, and is
    put back."""
    if precision == "float32":
        yield
        return
    backends: Any = torch.backends
    place = backends.mkldnn.matmul if device.type == "cpu" else backends.cuda.matmul
    before = place.fp32_precision
    place.fp32_precision = _FAST[device.type]
    try:
        yield
    finally:
        place.fp32_precision = before
