"""Tool calls as Hermes and Qwen models write them: JSON between two marks.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Bergen"}}
    </tool_call>

Qwen2.5-Coder writes a block of code instead, marked as JSON, against its own template.

Calls are read from the answer's committed text. Marks inside strings do not end a call, so a call is
the same however the text is cut into pieces. Anything but a call of a known function stays text, and
may hold calls itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import uuid4

from paceline.constraints.schema_length import COMPACT
from paceline.serve.schemas import Tool
from paceline.text import CALL_MARKS

OPEN, CLOSE = CALL_MARKS

_IN_STRING = re.compile(r'\\.|"', re.DOTALL)
_LOOKED_AT = 64
"""Characters after a mark that show whether a call follows."""


@dataclass(frozen=True)
class _Notation:
    """How a call may be written. begin: of what is between the marks, without white space. fields:
    that a call must have."""

    open: str
    close: str
    begin: str
    fields: frozenset[str]

    @cached_property
    def outside(self) -> re.Pattern[str]:
        """What to look for outside of strings."""
        return re.compile(f'"|{self.close}')


_NOTATIONS = (
    _Notation(OPEN, CLOSE, "{", frozenset({"name"})),
    # Any other block of JSON is part of an answer, which is not to be held back.
    _Notation("```json", "```", '{"name":', frozenset({"name", "arguments"})),
)


@dataclass(frozen=True)
class ToolCall:
    """A call requested by the model. arguments: JSON text, as clients expect it."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid4().hex[:24]}")


class CallReader:
    """Finds calls in an answer, piece by piece. names: of known functions."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._rest = ""  # not returned yet
        self._inside: _Notation | None = None  # if it begins with white space and a mark
        self._body = 0  # where the call begins, then
        self._scanned = 0
        self._in_string = False

    def feed(self, text: str) -> list[str | ToolCall]:
        """Read another piece of the answer; returns the texts and calls now certain, in order."""
        self._rest += text
        return list(self._certain())

    def finish(self) -> list[str | ToolCall]:
        """The rest, after the answer's end: a call that lacks only its closing mark, or part of it,
        still counts."""
        found = list(self._certain(ended=True))
        rest, self._rest = self._rest, ""
        return [*found, rest] if rest else found

    def _certain(self, ended: bool = False) -> Iterator[str | ToolCall]:
        while notation := self._inside or (yield from self._until_mark()):
            begun = "".join(self._rest[self._body : self._body + _LOOKED_AT].split())
            if not (begun.startswith(notation.begin) or notation.begin.startswith(begun)):
                yield self._no_call()
                continue
            end = self._end_of_call(notation)
            if end is None and not ended:
                return
            body = self._rest[self._body : end]
            call = self._call(body[: len(body) - _begun(body, notation.close)], notation)
            if call is None:
                yield self._no_call()
            else:
                self._inside, self._rest = None, self._rest[self._body + len(body) :]
                yield call

    def _until_mark(self) -> Generator[str, None, _Notation | None]:
        """The text before a mark, or before what may become one; returns the mark's notation.
        White space before a call is part of its notation."""
        places = [(self._rest.find(each.open), each) for each in _NOTATIONS]
        begin, found = min(
            ((place, each) for place, each in places if place >= 0),
            key=lambda placed: placed[0],
            default=(-1, None),
        )
        partly = max(_begun(self._rest, each.open) for each in _NOTATIONS)
        end = begin if found else len(self._rest) - partly
        said = len(self._rest[:end].rstrip())
        if said:
            yield self._rest[:said]
        self._rest = self._rest[said:]
        self._inside, self._in_string = found, False
        if found:
            self._body = self._scanned = begin - said + len(found.open)
        return found

    def _no_call(self) -> str:
        """The mark that no call follows: it is text, and what follows may hold others."""
        said, self._rest = self._rest[: self._body], self._rest[self._body :]
        self._inside = None
        return said

    def _end_of_call(self, notation: _Notation) -> int | None:
        """The end of the call that the rest begins with; None while it is unknown."""
        rest = self._rest
        while found := (_IN_STRING if self._in_string else notation.outside).search(
            rest, self._scanned
        ):
            self._scanned = found.end()
            if found[0] == notation.close:
                return self._scanned
            if found[0] == '"':
                self._in_string = not self._in_string
        # A mark or an escape may end in the next piece.
        cut = rest.endswith("\\") if self._in_string else len(notation.close) - 1
        self._scanned = max(self._scanned, len(rest) - cut)
        return None

    def _call(self, text: str, notation: _Notation) -> ToolCall | None:
        try:
            call = json.loads(text)
            name, arguments = call["name"], call.get("arguments", {})
            known = name in self._names and notation.fields <= call.keys()
            if not known or not isinstance(arguments, dict):
                return None
            # Escapes stay escapes: half a character has no other form. NaN is an error.
            escaped = "\\u" in text
            return ToolCall(name, json.dumps(arguments, ensure_ascii=escaped, allow_nan=False))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
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


def _begun(text: str, mark: str) -> int:
    """Length of the longest beginning of the mark that the text ends with."""
    return next((n for n in range(len(mark), 0, -1) if text.endswith(mark[:n])), 0)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _compact(schema: dict[str, Any]) -> str:
    """The schema with exactly the white space that these models are trained on."""
    return json.dumps({**schema, "x-guidance": COMPACT}, ensure_ascii=False)
