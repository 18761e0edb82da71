"""What benchmarks have in common: which model they run, and how they write their results."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paceline
from paceline.machine import describe_run
from paceline.records import TargetInfo
from paceline.session import Session


def add_placement(parser: ArgumentParser) -> None:
    """Add the options of `opened`, named as in `paceline.load`."""
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--weights", default="auto")


def opened(options: Namespace, method: str = "plain", **more: Any) -> Session:
    """The model that the options name."""
    place = {name: getattr(options, name) for name in ("device", "dtype", "weights")}
    return paceline.load(options.model, method, **place, **more)


def write(path: Path | None, content: Mapping[str, Any], info: TargetInfo | None = None) -> None:
    """Write results as JSON, after how they came about; nothing without a path.

    info: of the target that ran; None for work on the CPU without one.
    """
    if path is not None:
        run = describe_run("cpu" if info is None else info.device)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**run, "command": shown_command(), **content}, indent=2)
        path.write_text(f"{text}\n", encoding="utf-8")


def shown_command() -> str:
    """This process's command, without the private folders of absolute paths."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    return shlex.join(["python", *words])
