"""Tool calls as Hermes and Qwen models write them: JSON between two marks.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Bergen"}}
    </tool_call>

They are read from the answer's committed text. Marks inside strings do not end a call, so a call is
the same however the text is cut into pieces. Anything but a call of a known function stays text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from paceline.serve.schemas import Tool

__all__ = ["CLOSE", "OPEN", "CallReader", "ToolCall", "call_grammar"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class ToolCall:
    """A call requested by the model. arguments: JSON text, as clients expect it."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid4().hex[:24]}")


class CallReader:
    """Finds calls in an answer, piece by piece.

    names: of known functions.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._rest = ""  # not returned yet
        self._inside = False
        self._scanned = 0  # of the rest, inside a call
        self._in_string = False

    def feed(self, text: str) -> list[str | ToolCall]:
        """Read another piece of the answer; returns the texts and calls now certain, in order."""
        self._rest += text
        return list(self._certain())

    def finish(self) -> list[str | ToolCall]:
        """The rest, after the answer's end: a call that lacks only its closing mark, or part of it,
        still counts."""
        rest, self._rest = self._rest, ""
        if self._inside:
            halves = (size for size in range(len(CLOSE), 0, -1) if rest.endswith(CLOSE[:size]))
            body = rest[len(OPEN) : len(rest) - next(halves, 0)]
            return [self._call(body) or rest]
        return [rest] if rest else []

    def _certain(self) -> Iterator[str | ToolCall]:
        while True:
            if self._inside:
                end = self._end_of_call()
                if end is None:
                    return
                whole, self._rest = self._rest[:end], self._rest[end:]
                self._inside = False
                yield self._call(whole[len(OPEN) : -len(CLOSE)]) or whole
                continue
            begin = self._rest.find(OPEN)
            said = self._rest[: self._held() if begin < 0 else begin]
            if begin >= 0:  # white space around calls is part of their notation
                said = said.rstrip()
            if said:
                yield said
            if begin < 0:
                self._rest = self._rest[self._held() :]
                return
            self._rest = self._rest[begin:]
            self._inside, self._in_string, self._scanned = True, False, len(OPEN)

    def _held(self) -> int:
        """Where the part of the rest begins that may belong to a call."""
        for size in range(min(len(OPEN) - 1, len(self._rest)), -1, -1):
            if not size or self._rest.endswith(OPEN[:size]):
                return len(self._rest[: len(self._rest) - size].rstrip())
        return len(self._rest)

    def _end_of_call(self) -> int | None:
        """The end of the call that the rest begins with; None while it is unknown."""
        rest, place = self._rest, self._scanned
        while place < len(rest):
            letter = rest[place]
            if self._in_string and letter == "\\":
                if place + 1 == len(rest):
                    break  # the escaped letter comes with the next piece
                place += 2
                continue
            if letter == '"':
                self._in_string = not self._in_string
            elif letter == "<" and not self._in_string:
                if rest.startswith(CLOSE, place):
                    return place + len(CLOSE)
                if CLOSE.startswith(rest[place:]):
                    break  # half a mark
            place += 1
        self._scanned = place
        return None

    def _call(self, text: str) -> ToolCall | None:
        try:
            call = json.loads(text)
            name, arguments = call["name"], call.get("arguments", {})
            if name not in self._names or not isinstance(arguments, dict):
                return None
            # Escapes stay escapes: half a character has no other form. NaN is an error.
            escaped = "\\u" in text
            return ToolCall(name, json.dumps(arguments, ensure_ascii=escaped, allow_nan=False))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def call_grammar(
    tools: Sequence[Tool],
    marks: tuple[str, str],
    *,
    several: bool,
    answer: dict[str, Any] | None = None,
) -> str:
    """A grammar of calls, in llguidance's dialect of Lark.

    marks: how the grammar writes the two marks: `<[id]>` for a single token, else a string.
    several: whether more calls may follow. answer: schema of an alternative to calls.
    """
    bodies = " | ".join(f"body_{place}" for place in range(len(tools)))
    rules = [
        f"start: calls{' | answer' if answer is not None else ''}",
        f"calls: call{'(' + _quoted(chr(10)) + ' call)*' if several else ''}",
        f"call: {marks[0]} {_quoted(chr(10))} ({bodies}) {_quoted(chr(10))} {marks[1]}",
    ]
    for place, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.function.name)}, "arguments": '
        # Each schema gets its own root, so that references inside it stay valid.
        rules.append(f"body_{place}: {_quoted(head)} arguments_{place} {_quoted('}')}")
        schema = tool.function.parameters or {}
        rules.append(f"arguments_{place}: %json {_compact({'type': 'object', **schema})}")
    if answer is not None:
        rules.append(f"answer: %json {_compact(answer)}")
    return "\n".join(rules)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _compact(schema: dict[str, Any]) -> str:
    """The schema with exactly the white space that these models are trained on."""
    layout = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return json.dumps({"x-guidance": layout, **schema}, ensure_ascii=False)
