"""Methods from other packages, named by the place of their class or by an entry point.

    anybody.drafting:Stutter:times=3        the class Stutter of the module anybody.drafting
    stutter:times=3                         a name of the group `paceline.drafters`

Each is a `MethodSpec`, or a subclass of `Drafter` whose settings are its `Settings`.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import Any

from paceline.drafters.method import MethodSpec, NoSettings
from paceline.errors import UsageError
from paceline.protocols import Drafter

__all__ = ["GROUP", "found_outside", "outside_names"]

GROUP = "paceline.drafters"
"""Entry points of this group are methods, by their names."""


def outside_names() -> list[str]:
    """Names of methods of installed packages, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def found_outside(name: str) -> MethodSpec[Any] | None:
    """The method at the place `name`, or the one that a package has under this name; None if none
    has.

    Raises UsageError if it cannot be imported or is not a method.
    """
    if ":" in name:
        return _loaded(name, EntryPoint(name, name, GROUP))
    return next((_loaded(name, one) for one in entry_points(group=GROUP, name=name)), None)


def _loaded(name: str, entry: EntryPoint) -> MethodSpec[Any]:
    where = f"method {name!r}" if entry.value == name else f"method {name!r} ({entry.value})"
    try:
        found = entry.load()
    except Exception as error:  # importing a module may raise anything
        raise UsageError(
            f"cannot load {where}: {type(error).__name__}: {error}; check that the package is "
            "installed and that the names of the module and the class are right"
        ) from error
    if isinstance(found, MethodSpec):
        return replace(found, name=name)
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise UsageError(
            f"{where} is neither a subclass of paceline.protocols.Drafter nor a MethodSpec: name "
            "one that is"
        )
    if isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise UsageError(f"{where} does not define {missing}: a drafter must define all of them")
    return _of_class(name, found, where)


def _of_class(name: str, kind: type[Drafter], where: str) -> MethodSpec[Any]:
    settings = kind.Settings or NoSettings
    if not is_dataclass(settings):
        raise UsageError(
            f"the Settings of {where} are not a dataclass: decorate them with @dataclass"
        )
    return MethodSpec(name, settings, build=partial(_with_keywords, kind))


def _with_keywords(kind: type[Drafter], settings: Any) -> Drafter:
    return kind(**vars(settings))
