"""The precision of float32 products, and the kernels of attention, while something learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.errors import UsageError

_FAST = {"cpu": "bf16", "cuda": "tf32"}


def usable_precision(wanted: str, device: torch.device) -> str:
    """float32 or bfloat16; for "auto", the faster one here. Raises UsageError for bfloat16 if the
    processor does not multiply it."""
    backends: Any = torch.backends
    can = hasattr(_switch(device), "fp32_precision")
    if can and device.type == "cpu":
        has_products = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        can = has_products and backends.mkldnn.is_available()
    if wanted == "bfloat16" and not can:
        raise UsageError(
            "this processor, or this version of torch, has no products in bfloat16: leave "
            "--precision at auto"
        )
    return wanted if wanted != "auto" else "bfloat16" if can else "float32"


def products_name(precision: str, device: torch.device) -> str:
    """What records call it: the products that were taken."""
    return "tf32" if precision == "bfloat16" and device.type == "cuda" else precision


@contextmanager
def without_cudnn(device: torch.device) -> Iterator[None]:
    """On a GPU, leave attention to kernels other than cuDNN's inside: it prepares every new shape
    for longer than passes take, and with a mask its gradients can be NaN (torch 2.11, issue
    196678). This is torch's setting for the whole process; it is restored."""
    backend: Any = torch.backends.cuda
    before = backend.cudnn_sdp_enabled()
    if device.type == "cuda":
        backend.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        backend.enable_cudnn_sdp(before)


def forward_in(precision: str, device: torch.device) -> torch.autocast:
    """Autocast in which layers take and return bfloat16, on a processor that multiplies it: casting
    a weight once a step, and no result back, is faster than products that cast. Losses are
    computed outside, in float32."""
    halves = precision == "bfloat16" and device.type == "cpu"
    return torch.autocast(device.type, torch.bfloat16, enabled=halves)


def _switch(device: torch.device) -> Any:
    """What holds torch's setting for products on a device; torch before 2.9, and some devices, have
    none."""
    backends: Any = torch.backends
    holders = {"cpu": backends.mkldnn, "cuda": backends.cuda}
    return getattr(holders.get(device.type), "matmul", None)


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices in bfloat16 (on a GPU, TF32) inside, accumulating in float32;
    everything else stays float32. This is torch's setting for the whole process; it is restored."""
    if precision == "float32":
        yield
        return
    place = _switch(device)
    before = place.fp32_precision
    place.fp32_precision = _FAST[device.type]
    try:
        yield
    finally:
        place.fp32_precision = before
