"""How long the texts are that expressions stand for: repetitions, alternatives, references.

llguidance writes out at once what must come next, however long it is, and cannot be interrupted; a
grammar of thirty bytes can stand for gigabytes. So lengths are estimated first. They are at least
what can be forced, except by patterns that force something only together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

LEVELS = 250.0
"""How deeply a text may be nested in parts that contain themselves."""

Part = tuple[str, Any]
"""Of an expression: "(", ")", "|", "&", a "size" in characters, the "name" of something known, or,
as "times", how often what stands before comes at least and whether it may come more often."""

ENOUGH = 1e15
"""What is longer counts as this, so that sums and products stay finite."""
_ANY: Part = ("times", (0, True))
MARKS: dict[str, list[Part]] = {
    "(": [("(", None)],
    "[": [("(", None)],
    ")": [(")", None)],
    "]": [(")", None), _ANY],
    "|": [("|", None)],
    "&": [("&", None)],
    "?": [_ANY],
    "*": [_ANY],
    "+": [("times", (1, True))],
}
"""Of expressions, as parts; brackets enclose what may be left out. Others say nothing."""
# No part of these can be read in two ways, so that they take linear time for any text.
_REGEX = re.compile(
    r"(?P<skip>\(\?[a-zA-Z\-]+\))"
    r"|(?P<open>\((?:\?(?:P?<\w*>|[a-zA-Z\-]*:))?)"
    r"|(?P<times>\{[\s\d,]*\}\??)"
    r"|(?P<mark>[)|]|[*+?]\??)"
    r"|(?P<one>\\[pPxuU]\{[^{}\\]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\[])"
    r"|(?P<error>\[)",
    re.DOTALL,
)
_SPACED = re.compile(r"\(\?[a-zA-Z]*x")


def longest(parts: Iterable[Part], known: Mapping[str, float]) -> float:
    """The length of an expression. Of alternatives the longest counts. Nothing is forced before
    text that may be left out, so what follows is counted from there.

    known: the lengths of names; others have none to speak of.
    """
    levels = [_Level()]
    for kind, value in parts:
        if kind == "(":
            levels.append(_Level())
        elif kind == ")" and len(levels) > 1:
            inner = levels.pop()
            levels[-1].add(inner.ended())
        elif kind == "times":
            levels[-1].repeat(*value)
        elif kind in ("|", "&"):
            levels[-1].next(alternative=kind == "|")
        elif kind == "size":
            levels[-1].add(value)
        elif kind == "name":
            levels[-1].add(known.get(value, 1.0))
    while len(levels) > 1:
        inner = levels.pop()
        levels[-1].add(inner.ended())
    return levels[0].ended()


def solved(
    start: str,
    needs: Callable[[str], Collection[str]],
    length: Callable[[str, Mapping[str, float]], float],
    depth: float,
) -> float:
    """The length of `start`.

    needs: the names that a name refers to. length: its length, given theirs; those of which it is
    itself a part count nothing. depth: how often a text can be inside a name that refers to itself;
    what follows all of these may be forced at once.
    """
    known: dict[str, float] = {}
    circular: set[str] = set()
    # Not by recursion, as chains of thousands are allowed.
    path: dict[str, Iterator[str]] = {start: iter(needs(start))}
    while path:
        name = next(reversed(path))
        below = next((each for each in path[name] if each not in known), None)
        if below is None:
            del path[name]
            known[name] = min(length(name, known), ENOUGH)
        elif below in path:
            circular.add(below)
        else:
            path[below] = iter(needs(below))
    return max(known[start], *(known[name] * depth for name in circular), 0.0)


def pattern_length(pattern: str) -> float:
    """The length of a regular expression."""
    return longest(pattern_parts(pattern), {})


def pattern_parts(pattern: str) -> Iterator[Part]:
    """A regular expression as parts."""
    if _SPACED.search(pattern):  # in which `{45} {45}` multiply
        yield "size", ENOUGH
    for found in _REGEX.finditer(pattern):
        if found.lastgroup == "error":
            return
        if found.lastgroup == "open":
            yield "(", None
        elif found.lastgroup == "times":
            yield repetition(found[0])
        elif found.lastgroup == "mark":
            yield from MARKS[found[0][0]]
        elif found.lastgroup == "one":
            yield "size", 1.0


def repetition(text: str) -> Part:
    """`{2}`, `{2,3}`, `~ 2` or `~ 2..3` as a part."""
    numbers = re.findall(r"\d+", re.split(r",|\.\.", text)[0])
    least = min(float(numbers[0]), ENOUGH) if numbers else 0.0
    return "times", (least, "," in text or ".." in text)


class _Level:
    """What stands between two parentheses."""

    def __init__(self) -> None:
        self._longest, self._together = 0.0, 1.0
        self._needed = self._optional = self._last = 0.0

    def add(self, length: float) -> None:
        self._pass(self._last)
        self._last = length

    def repeat(self, least: float, more: bool) -> None:
        length, self._last = self._last, 0.0
        self._pass(least * length)
        self._optional = max(self._optional, length * more)

    def _pass(self, length: float) -> None:
        self._needed, self._optional = self._needed + length, self._optional + length

    def next(self, alternative: bool) -> None:
        # A text that follows several patterns can be as long as a multiple of all their lengths.
        self._pass(self._last)
        self._together *= max(1.0, self._needed, self._optional)
        self._together = min(self._together, ENOUGH)
        self._needed = self._optional = self._last = 0.0
        if alternative:
            self._longest, self._together = max(self._longest, self._together), 1.0

    def ended(self) -> float:
        self.next(alternative=True)
        return self._longest
