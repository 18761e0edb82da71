"""Settings of methods: their one notation, `name:setting=value,…`, and their checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from paceline.errors import UsageError

__all__ = ["HOST", "at_least", "build", "parse_method", "read_settings"]

D = TypeVar("D")

HOST = "host"
"""Name of the constructor's argument that is no setting: the model to work for."""


def at_least(minimum: int, **setting: int) -> int:
    """The value of one named setting; raises UsageError where it is below `minimum`."""
    ((name, value),) = setting.items()
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise UsageError(f"{name} must be a whole number >= {minimum}, got {value!r}")
    return value


def parse_method(text: str) -> tuple[str, dict[str, str]]:
    """Split the notation.

        "anpd:n=5,k=7"  ->  ("anpd", {"n": "5", "k": "7"})

    Raises UsageError where it is malformed.
    """
    name, _, rest = text.strip().partition(":")
    settings: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise UsageError(
                f"cannot read {part!r} in method {text!r}: write it as name:setting=value,…, "
                "for example anpd:n=5,k=7"
            )
        if key.strip() in settings:
            raise UsageError(f"method {text!r} sets {key.strip()} twice: write it once")
        settings[key.strip()] = value.strip()
    return name.strip(), settings


def build(kind: type[D], name: str, settings: Mapping[str, Any]) -> D:
    """Construct what needs nothing but settings; see `read_settings`."""
    return kind(**read_settings(kind, name, settings))


def read_settings(
    kind: Callable[..., object], name: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments for the class `kind`, strings among them read as its constructor's types.

    Its settings are the constructor's arguments but for `HOST` and those that can only be given by
    name: the latter are for who constructs it in Python.

    Raises UsageError for a setting that `kind` does not have or a value it cannot read.
    """
    parameters = _settings(kind)
    hints = get_type_hints(kind.__init__)
    values = {}
    for key, value in settings.items():
        if key not in parameters:
            known = ", ".join(parameters) or "none"
            close = get_close_matches(key, parameters, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UsageError(f"method {name} has no setting {key!r}{hint}; it has: {known}")
        values[key] = _read(value, hints[key], f"{name}:{key}")
    return values


def _settings(kind: Callable[..., object]) -> list[str]:
    return [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if name != HOST and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]


def _read(value: Any, wanted: Any, where: str) -> Any:
    if not isinstance(value, str) or wanted is str:
        return value
    if get_origin(wanted) is Literal:
        if value in get_args(wanted):
            return value
        raise UsageError(f"{where} must be one of {', '.join(get_args(wanted))}, got {value!r}")
    try:
        return {"true": True, "false": False}[value.lower()] if wanted is bool else wanted(value)
    except (KeyError, ValueError) as error:
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[wanted]
        raise UsageError(f"{where} must be {kind}, got {value!r}") from error
