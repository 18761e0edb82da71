"""What benchmarks have in common: options, and how they write results."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any, get_args

from paceline.machine import describe_run


def options(doc: str | None, **defaults: Any) -> Namespace:
    """The options of this command, named after their defaults. `doc`, the help, explains them.

    In place of a default a type makes an option required, `TYPE | None` optional, and `list[TYPE]`
    repeatable; a list takes several values, False is a flag.
    """
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    for name, given in defaults.items():
        how: dict[str, Any] = {"default": given, "type": type(given), "help": "%(default)s"}
        if isinstance(given, type):
            how = {"required": True, "type": given}
        elif isinstance(given, UnionType):
            how = {"type": get_args(given)[0]}
        elif isinstance(given, GenericAlias):
            how = {"type": get_args(given)[0], "nargs": "+", "action": "extend", "default": []}
        elif isinstance(given, list):
            how |= {"type": type(given[0]), "nargs": "+"}
        elif given is False:
            how = {"action": "store_true"}
        short = ["-n"] if name == "max_new_tokens" else []
        parser.add_argument(f"--{name.replace('_', '-')}", *short, **how)
    return parser.parse_args()


def write(path: Path, content: Mapping[str, Any], device: str = "cpu") -> None:
    """Write results as JSON, after how they came about.

    device: of the target that ran, if any.
    """
    # Without private folders.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    run = describe_run(device) | {"command": shlex.join(["python", *words])}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**run, **content}, indent=2) + "\n", encoding="utf-8")
