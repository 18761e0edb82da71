"""Where a benchmark's model goes, and how to wait for its device."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch


def add_placement(parser: argparse.ArgumentParser, device: str | None, dtype: str | None) -> None:
    """Add --device and --dtype with these defaults; None leaves the choice to the loader."""
    parser.add_argument("--device", default=device, help="cpu, cuda, cuda:1, …")
    parser.add_argument("--dtype", default=dtype, help="float32, bfloat16, float16")


def placement(options: argparse.Namespace) -> dict[str, str | None]:
    """The chosen device and dtype, for the loaders."""
    return {"device": options.device, "dtype": options.dtype}


def waiting(device: torch.device) -> Callable[[], None]:
    """A function that returns when `device` has finished all its work."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
