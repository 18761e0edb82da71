"""Settings of methods: their one notation, `name:setting=value,…`, and their checks.

A value that contains commas goes into brackets: a method inside a method with several settings is
`speculative:draft=NAME,inner=(anpd:n=4,k=10)`. Brackets anywhere else are part of the value.

The name may also be the place of a class, `package.module:Class:setting=value,…`. If the module is
not inside a package, the capital letter identifies the class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from paceline.errors import UsageError, meant

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# A module with its class, then only settings.
_PLACE = re.compile(r"([\w.]+):([^\W\d][\w.]*)(?::(.*))?", re.DOTALL)

_WITHOUT = "without"  # the setting that `-name` is short for

MOST_RANKS = 1000
"""Most guesses to consider for one token: the library sorts them in, one by one."""
_LARGEST = 10**15  # larger numbers, and products of them, could wrap around in the C library


def at_least(minimum: int, **setting: int) -> int:
    """The value of one named setting; raises UsageError unless it is an int >= `minimum`, but not
    absurdly large."""
    return within(minimum, _LARGEST, **setting)


def within(minimum: int, maximum: int, **setting: int) -> int:
    """The value of one named setting; raises UsageError unless it is an int in this range."""
    ((name, value),) = setting.items()
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise UsageError(f"{name} must be a whole number >= {minimum}, got {value!r}")
    if value > maximum:
        raise UsageError(f"{name} must be at most {maximum}, got {value}")
    return value


@dataclass(frozen=True)
class Settings:
    """Settings of a method. Its drafter takes them as `settings`, and fields to override by name as
    `changes`. Raises UsageError for a whole number out of range, see `whole`, and for a value that
    is not one of a `Literal`'s."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        types = _types(kind)
        for each in fields(self):
            value, wanted = getattr(self, each.name), types[each.name]
            if "range" in each.metadata:
                within(*each.metadata["range"], **{each.name: value})
            elif get_origin(wanted) is Literal:
                _check_choice(each.name, value, get_args(wanted))


def whole(default: int, least: int, most: int = _LARGEST) -> int:
    """Make a field of `Settings`: a whole number in this range."""
    made: int = field(default=default, metadata={"range": (least, most)})
    return made


def parse_method(text: str) -> tuple[str, dict[str, str]]:
    """Split the notation.

        "anpd:n=5,k=7"                  ->  ("anpd", {"n": "5", "k": "7"})
        "x:draft=A,inner=(anpd:n=5,k=7)"  ->  ("x", {"draft": "A", "inner": "anpd:n=5,k=7"})
        "module.of:Class:n=5"           ->  ("module.of:Class", {"n": "5"})
        "auto:-medusa,-chimera"         ->  ("auto", {"without": "medusa+chimera"})

    Raises UsageError if it is malformed.
    """
    name, rest = _split_name(text.strip())
    settings: dict[str, str] = {}
    left_out: list[str] = []
    for part in filter(None, split_at(",", rest)):
        if part.strip().startswith("-") and part.strip(" -") and "=" not in part:
            left_out.append(part.strip(" -"))
            continue
        key, equals, value = part.partition("=")
        value = _without_brackets(value.strip(), text)
        if not (key.strip() and equals and value):
            raise UsageError(
                f"cannot read {part!r} in method {text!r}: write it as name:setting=value,…, "
                "for example anpd:n=5,k=7"
            )
        if key.strip() in settings:
            raise UsageError(f"method {text!r} sets {key.strip()} twice: write it once")
        settings[key.strip()] = value
    if left_out:
        named = [settings[_WITHOUT]] if _WITHOUT in settings else []
        settings[_WITHOUT] = "+".join([*named, *left_out])
    return name.strip(), settings


def _split_name(text: str) -> tuple[str, str]:
    """The name of a method and the text of its settings."""
    if place := _PLACE.fullmatch(text):
        module, attribute, rest = place.groups(default="")
        if "." in module or attribute[0].isupper():
            return f"{module}:{attribute}", rest
    name, _, rest = text.partition(":")
    return name, rest


def split_at(separator: str, text: str) -> list[str]:
    """Split at a letter, except in a value that begins with a bracket.

    Raises UsageError if such a bracket is not closed.
    """
    parts, begin, open_brackets = [], 0, 0
    for place, letter in enumerate(text):
        if letter == "(" and (open_brackets or text[:place].rstrip().endswith("=")):
            open_brackets += 1
        elif letter == ")" and open_brackets:
            open_brackets -= 1
        elif letter == separator and not open_brackets:
            parts.append(text[begin:place])
            begin = place + 1
    if open_brackets:
        raise UsageError(f"a bracket is not closed in {text!r}: write a ) for every (")
    return [*parts, text[begin:]]


def bracketed(value: str) -> str:
    """A value in the notation, in brackets if it needs them."""
    return f"({value})" if "," in value or value.startswith("(") else value


def _without_brackets(value: str, text: str) -> str:
    if not value.startswith("("):
        return value
    depth = 0
    for place, letter in enumerate(value):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place < len(value) - 1:
            raise UsageError(
                f"{value[place + 1 :]!r} follows a closed bracket in method {text!r}: separate "
                "settings by commas, and write a ( for every )"
            )
    return value[1:-1].strip()


def read_settings(
    kind: type[DataclassInstance], name: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Values for the fields of the dataclass `kind`, with strings parsed as the fields' types.

    Raises UsageError for a setting that `kind` does not have or a value it cannot read.
    """
    names = [field.name for field in fields(kind) if field.init]
    types = _types(kind)
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in names:
            known = ", ".join(names) or "none"
            hint = meant(key, names)
            if any(":" in str(other) for other in values.values()):
                hint += " (put the settings of an inner method in brackets, as in inner=(anpd:n=4))"
            raise UsageError(f"method {name} has no setting {key!r}{hint}; it has: {known}")
        values[key] = _read(value, types[key], f"{name}:{key}")
    return values


# Names of types take half a millisecond to look up, and drafters are made for every text.
_types = cache(get_type_hints)

_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _read(value: Any, wanted: Any, where: str) -> Any:
    kinds = [kind for kind in get_args(wanted) if kind is not NoneType]
    if len(kinds) == 1 and NoneType in get_args(wanted):  # only its default can be None
        wanted = kinds[0]
    if not isinstance(value, str) or wanted in (str, Any):
        return value
    if get_origin(wanted) is Literal:
        _check_choice(where, value, get_args(wanted))
        return value
    if wanted not in _KINDS:
        raise UsageError(f"{where} cannot be written as text: give it in Python")
    try:
        return {"true": True, "false": False}[value.lower()] if wanted is bool else wanted(value)
    except (KeyError, ValueError) as error:
        raise UsageError(f"{where} must be {_KINDS[wanted]}, got {value!r}") from error


def _check_choice(where: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{where} must be one of {', '.join(choices)}, got {value!r}")
