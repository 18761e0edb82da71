"""Where a benchmark's model goes, and when its device has done what it was told to."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch


def add_placement(parser: argparse.ArgumentParser, device: str | None, dtype: str | None) -> None:
    """Add --device and --dtype; the arguments are their defaults, None for those of the loader."""
    parser.add_argument("--device", default=device, help="cpu, cuda, cuda:1, …")
    parser.add_argument("--dtype", default=dtype, help="float32, bfloat16, float16")


def placement(options: argparse.Namespace) -> dict[str, str | None]:
    """For the loaders, what was chosen."""
    return {"device": options.device, "dtype": options.dtype}


def waiting(device: torch.device) -> Callable[[], None]:
    """What returns when `device` has nothing left to do."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
