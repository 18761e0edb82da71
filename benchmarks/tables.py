"""How benchmarks write their results."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.machine import describe_run
from paceline.records import TargetInfo


def write(path: Path | None, content: Mapping[str, Any], info: TargetInfo | None = None) -> None:
    """Write results as JSON, after how they came about; nothing without a path.

    info: of the target that ran; None for work on the CPU without one.
    """
    if path is not None:
        found = {
            **describe_run("cpu" if info is None else info.device),
            "command": shown_command(),
            **content,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def shown_command() -> str:
    """This process's command, without the private folders of absolute paths."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    return shlex.join(["python", *words])
