"""The length of what a JSON schema can force, see `lengths`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import Any, TypeVar
from urllib.parse import unquote

from paceline.constraints.lengths import ENOUGH, LEVELS, pattern_length, solved

_T = TypeVar("_T")

COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance's options for JSON on one line, as `json.dumps` writes it."""

_VALUE = 10.0
"""A value's own marks, digits and words; no string, which is either free or counted."""
_BESIDE = 4
"""The marks between a name and its value, and before the next."""
_DIGITS = 9  # of a place in a list: Python does not read numbers of thousands of digits
_MOST_STEPS = 200_000  # less than a second
_IDS = ("$id", "id")
_BRANCHES = ("if", "then", "else")
_ARRAY = {"items", "prefixItems", "additionalItems", "minItems"}
_OBJECT = {"properties", "patternProperties", "additionalProperties", "required", "minProperties"}


def schema_length(schema: Any) -> float:
    """The length of what a JSON schema can force."""
    try:
        document = _Document(schema)
        return solved(document.name("#"), document.needs, document.length, LEVELS)
    except RecursionError:  # llguidance takes nothing that is nested so deeply
        return inf


class _Document:
    """A schema with the parts that it refers to, by reference."""

    def __init__(self, schema: Any) -> None:
        self._roots = [schema]
        self._names: dict[str, str] = {}  # by reference
        self._named: dict[str, list[Any]] = {}
        self._anchors: dict[str, list[Any]] = defaultdict(list)
        for each in _objects(schema):
            # References count from the nearest part with an id: all of these are tried.
            if each is not schema and any(isinstance(each.get(key), str) for key in _IDS):
                self._roots.append(each)
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(each.get(key), str):
                    self._anchors[each[key]].append(each)
        self._steps = 0
        self._counts: dict[int, float] = {}

    def name(self, reference: str) -> str:
        """A name for what is referred to, however that is written."""
        if reference not in self._names:
            targets = self._targets(reference)
            name = self._names[reference] = ",".join(str(id(target)) for target in targets)
            self._named[name] = targets
        return self._names[reference]

    def needs(self, name: str) -> list[str]:
        """The names of what a part refers to."""
        found = []
        for target in self._named[name]:
            for each in _objects(target):
                self._step()
                if isinstance(each.get("$ref"), str):
                    found.append(self.name(each["$ref"]))
        return found

    def length(self, name: str, known: Mapping[str, float]) -> float:
        """The length of a part, given those of the parts that it refers to; infinite if there is
        none of this name."""
        return max((self._length(target, known) for target in self._named[name]), default=inf)

    def _targets(self, reference: str) -> list[Any]:
        fragment = unquote(reference.partition("#")[2])
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment, [])
        self._step(len(self._roots))
        names = [each.replace("~1", "/").replace("~0", "~") for each in fragment.split("/")[1:]]
        return [found for root in self._roots if (found := _at(root, names)) is not None]

    def _length(self, schema: Any, known: Mapping[str, float], least: float = 0.0) -> float:
        """least: items or properties that other parts of the same whole ask for."""
        if not isinstance(schema, dict):
            return _VALUE
        self._step()
        least = max(least, self._most(schema))
        inner = partial(self._length, known=known)
        beside = partial(self._length, known=known, least=least)
        texts = [*_the(list, schema, "enum"), schema.get("const")]
        length = _VALUE + max(len(json.dumps(text)) for text in texts)
        if isinstance(schema.get("$ref"), str):
            length += known.get(self.name(schema["$ref"]), 0.0) * (1 + self._apart(schema, least))
        parts = _the(list, schema, "allOf")
        patterns = [
            max(1.0, pattern_length(each["pattern"]), _count(each, "minLength"))
            for each in (schema, *parts)
            if isinstance(each, dict) and isinstance(each.get("pattern"), str)
        ]
        # A text that follows several patterns can be as long as a multiple of all their lengths.
        length += prod(patterns) if patterns else 0.0
        length += sum(map(beside, parts)) + max(map(beside, _ways(schema)), default=0.0)
        if not schema.keys().isdisjoint(_ARRAY):
            length += _array_length(schema, inner, least)
        if not schema.keys().isdisjoint(_OBJECT):
            length += _object_length(schema, inner, least)
        return length

    def _apart(self, schema: Mapping[str, Any], least: float) -> float:
        """What is asked for beside what a schema refers to, which counts its own."""
        own = max(map(self._most, self._named[self.name(schema["$ref"])]), default=0.0)
        return least if least > own else 0.0

    def _most(self, schema: Any) -> float:
        """The most items or properties that a part, or one that it is composed of, asks for."""
        if not isinstance(schema, dict):
            return 0.0
        if id(schema) not in self._counts:
            self._step()
            self._counts[id(schema)] = 0.0  # until it is known, for one that contains itself
            own = max(_count(schema, "minItems"), _count(schema, "minProperties"))
            composed = [*_the(list, schema, "allOf"), *_ways(schema)]
            if isinstance(schema.get("$ref"), str):
                composed += self._named[self.name(schema["$ref"])]
            self._counts[id(schema)] = max([own, *map(self._most, composed)])
        return self._counts[id(schema)]

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > _MOST_STEPS:
            raise RecursionError("it would take too long")


def _array_length(schema: Mapping[str, Any], inner: Callable[[Any], float], least: float) -> float:
    items = schema.get("items")
    first = [*_the(list, schema, "prefixItems"), *_the(list, schema, "items")]
    others = [schema.get("additionalItems"), None if isinstance(items, list) else items]
    other = _BESIDE + max(map(inner, others))
    return sum(_BESIDE + inner(item) for item in first) + (least + 1) * other


def _object_length(schema: Mapping[str, Any], inner: Callable[[Any], float], least: float) -> float:
    named, patterns = _the(dict, schema, "properties"), _the(dict, schema, "patternProperties")
    required = {name for name in _the(list, schema, "required") if isinstance(name, str)}
    beyond = inner(schema.get("additionalProperties"))

    def length(name: str) -> float:
        value = inner(named[name]) if name in named else beyond
        return len(json.dumps(name)) + _BESIDE + value

    others = [pattern_length(name) + inner(value) for name, value in patterns.items()]
    other = _BESIDE + max([beyond, *others])
    optional = max((length(name) for name in named.keys() - required), default=0.0)
    return sum(map(length, required)) + optional + (least + 1) * other


def _the(kind: type[_T], schema: Mapping[str, Any], name: str) -> _T:
    """What a schema has under this name, an empty one if it has nothing of this kind."""
    value = schema.get(name)
    return value if isinstance(value, kind) else kind()


def _ways(schema: Mapping[str, Any]) -> list[Any]:
    """The parts of which a value follows one or another."""
    branches = [schema[name] for name in _BRANCHES if name in schema]
    return [*_the(list, schema, "anyOf"), *_the(list, schema, "oneOf"), *branches]


def _count(schema: Mapping[str, Any], name: str) -> float:
    value = schema.get(name)
    return float(min(value, ENOUGH)) if isinstance(value, int) and value > 0 else 0.0


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects within a JSON value."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _is_place(name: str) -> bool:
    return name.isdecimal() and len(name) <= _DIGITS


def _at(value: Any, names: Sequence[str]) -> Any:
    """The part of a JSON value at a pointer's names; None for none."""
    for name in names:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _is_place(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
