"""Commands of this checkout, run as on a machine without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def without_gpu(**more: str) -> dict[str, str]:
    """The environment of such a command."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""} | more
