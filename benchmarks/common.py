"""What benchmarks have in common: options, how they end, and how they write results."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any, get_args

from paceline.cli.common import check_writable, write_json
from paceline.errors import PacelineError, UsageError
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
        if how.get("type") is int and given != 0:
            how["type"] = _count
        short = ["-n"] if name == "max_new_tokens" else []
        parser.add_argument(f"--{name.replace('_', '-')}", *short, **how)
    chosen = parser.parse_args()
    inputs = {name: value for name, value in vars(chosen).items() if name != "json"}
    check_writable(getattr(chosen, "json", None), Namespace(**inputs))
    return chosen


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def check_names(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError if one of these names is not known."""
    if strangers := [name for name in names if name not in known]:
        raise UsageError(f"no {what} {', '.join(strangers)}: there are {', '.join(known)}")


def run_script(main: Callable[[], None]) -> None:
    """Run a script; what a user can mend is one sentence and exit code 2, as with a command."""
    try:
        main()
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def write(path: Path, content: Mapping[str, Any], device: str = "cpu") -> None:
    """Write results as JSON, after how they came about.

    device: of the target that ran, if any.
    """
    # Without private folders.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    run = describe_run(device) | {"command": shlex.join(["python", *words])}
    write_json(path, {**run, **content})
