"""The length of what a grammar can force, see `lengths`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from paceline.constraints.lengths import (
    LEVELS,
    MARKS,
    Part,
    longest,
    pattern_parts,
    repetition,
    solved,
)
from paceline.constraints.schema_length import COMPACT, schema_length

_COUNTED = 10.0
"""Rules with parameters can count: where others must choose to end, these come back by force."""
_TOKENS = re.compile(
    r"(?P<skip>(?:\#|//)[^\n]*|[ \t]+|->[ \t]*\w*)"
    r"|(?P<line>(?:\r?\n[ \t]*)+)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*"i?|<[^<>\s]+>)'
    r"|(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)"
    r"|(?P<json>%(?:json|regex|llguidance)\s*)"
    r"|(?P<nested>%lark\s*\{)"
    r"|(?P<name>!?[_?]?[a-z][_a-z0-9\-]*|_?[A-Z][_A-Z0-9\-]*)"
    r"|(?P<times>\{[ \t\d,+]*\}|~[ \t]*\+?\d+(?:[ \t]*\.\.[ \t]*\+?\d+)?)"
    r"|(?P<mark>::|\.\.|.)",
    re.DOTALL,
)

Rules = dict[str, list[Part]]


def grammar_length(text: str) -> float:
    """The length of what a grammar in llguidance's dialect of Lark can force. What is no grammar
    has any length."""
    depth = LEVELS * (_COUNTED if "::" in text else 1.0)
    outer: list[tuple[Rules, list[Part]]] = []  # while in `%lark { … }`
    rules: Rules = {}
    rule: list[Part] = []
    for kind, value in [*_parts(text), ("line", None)]:
        if kind == "nested":
            outer.append((rules, rule))
            rules, rule = {}, []
        elif kind == "line":
            _add(rules, rule)
            rule = []
        elif kind == "}" and outer:
            _add(rules, rule)
            inner = _rules_length(rules, depth)
            rules, rule = outer.pop()
            rule.append(("size", inner))
        else:
            rule.append((kind, value))
    return _rules_length(rules, depth)


def _add(rules: Rules, rule: list[Part]) -> None:
    colon = next((at for at, (kind, _) in enumerate(rule) if kind == ":"), None)
    head = rule[:colon]
    name = next((value for kind, value in head if kind == "name"), None)
    if name is None or colon is None:
        return  # a directive
    # What stands before the colon may end the text, as in `[suffix="…"]`.
    ends = [part for part in head if part[0] != "name"]
    rules.setdefault(name, []).extend([*ends, *rule[colon + 1 :], ("|", None)])


def _rules_length(rules: Rules, depth: float) -> float:
    if "start" not in rules:
        return 0.0

    def needs(name: str) -> list[str]:
        return [value for kind, value in rules[name] if kind == "name" and value in rules]

    def length(name: str, known: Mapping[str, float]) -> float:
        return longest(rules[name], {each: known.get(each, 0.0) for each in needs(name)})

    return solved("start", needs, length, depth)


def _parts(text: str) -> Iterator[Part]:
    at = 0
    while found := _TOKENS.match(text, at):
        at, kind, value = found.end(), found.lastgroup, found[0]
        if kind == "json":
            size, at = _json(text, at, is_schema=value.startswith("%json"))
            yield "size", size
        elif kind == "line":
            if not text.startswith("|", at):
                yield "line", None
        elif kind == "text":
            yield "size", max(1.0, len(value.encode()) - 2.0)  # without quotation marks
        elif kind == "regex":
            end = value.rindex("/")
            yield "(", None
            yield from pattern_parts(f"(?x){value[1:end]}" if "x" in value[end:] else value[1:end])
            yield ")", None
        elif kind == "times":
            yield repetition(value)
        elif kind == "nested":
            yield "nested", None
        elif kind == "name":
            yield "name", value.lstrip("!?")
        elif value in (":", "}"):
            yield value, None
        elif value in ('"', "/"):  # not closed: what follows cannot be read
            yield "size", inf
            return
        elif kind == "mark":
            yield from MARKS.get(value, ())


def _json(text: str, at: int, is_schema: bool) -> tuple[float, int]:
    """The length of the JSON there, and where it ends."""
    try:
        value: Any
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):  # llguidance will say so
        return 0.0, at
    if not is_schema:
        return float(end - at), end
    spaces = value.get("x-guidance") if isinstance(value, dict) else None
    # Others could stand for any length.
    return (schema_length(value) if spaces in (None, COMPACT) else inf), end
