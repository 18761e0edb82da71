"""What benchmarks have in common: options, and how they write results."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any, get_args

from paceline.cli import exit_code
from paceline.cli.common import check_writable, write_json
from paceline.machine import describe_run


def options(doc: str | None, **defaults: Any) -> Namespace:
    """The options of this command, named after their defaults. `doc`, the help, explains them.

    In place of a default a type makes an option required, `TYPE | None` optional, and `list[TYPE]`
    repeatable; a list takes several values, False is a flag. Whole numbers are counts, from 1 on,
    unless the default is 0. That --json can be written is checked before work goes into it.
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
    chosen = parser.parse_args()
    for name, value in vars(chosen).items():
        counts = value if isinstance(value, list) else [value]
        if defaults[name] != 0 and any(type(count) is int and count < 1 for count in counts):
            parser.error(f"--{name.replace('_', '-')} takes whole numbers from 1 on")
    inputs = {name: value for name, value in vars(chosen).items() if name != "json"}
    check_writable(getattr(chosen, "json", None), Namespace(**inputs))
    return chosen


def run_script(main: Callable[[], None]) -> None:
    """Run a script and end with its exit code, as commands do."""
    sys.exit(exit_code(main))


def write(path: Path, content: Mapping[str, Any], device: str = "cpu") -> None:
    """Write results as JSON, after how they came about.

    device: of the target that ran, if any.
    """
    # Without private folders.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    run = describe_run(device) | {"command": shlex.join(["python", *words])}
    write_json(path, {**run, **content})
