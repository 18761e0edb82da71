"""The machine that a result was measured on."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def describe_machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Processor, cores, threads and device of a run; device: what the model ran on."""
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if on_gpu else str(device),
        "system": f"{platform.system()} {platform.machine()}",
    }


def describe_run(device: torch.device | str = "cpu") -> dict[str, Any]:
    """How a result was produced, ready for `json.dumps`; device: see `describe_machine`."""
    path = Path(sys.argv[0])
    program = path.parent.name if path.name == "__main__.py" else path.name
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "machine": describe_machine(device),
        "versions": describe_versions(),
        "python": platform.python_version(),
    }


def describe_versions() -> dict[str, str]:
    """Versions of the packages that determine what is computed, and of this package's sources."""
    names = ("paceline", "torch", "transformers", "numpy")
    return {name: _version(name) for name in names} | {"sources": _sources()}


@cache
def _sources() -> str:
    """12 hex digits for this package's code, which its version does not tell between releases."""
    folder, digest = Path(__file__).parent, sha256()
    code = (each for each in folder.rglob("*") if each.suffix in {".py", ".c", ".h"})
    for path in sorted(code):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
