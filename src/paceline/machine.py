"""What a result was measured on."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

__all__ = ["describe_machine", "describe_run", "describe_versions"]


def describe_machine(target: Any) -> dict[str, Any]:
    """Processor, cores, threads and device of a run."""
    device = getattr(target, "device", torch.device("cpu"))
    on_gpu = device.type == "cuda"
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if on_gpu else str(device),
        "system": f"{platform.system()} {platform.machine()}",
    }


def describe_run(target: Any = None) -> dict[str, Any]:
    """How a result came about: command, machine and versions, ready for `json.dumps`."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": describe_machine(target),
        "versions": describe_versions(),
        "python": platform.python_version(),
    }


def describe_versions() -> dict[str, str]:
    """Versions of the packages that decide what is computed."""
    found = {}
    for package in ("paceline", "torch", "transformers", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
