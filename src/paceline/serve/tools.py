"""Tool calls as Hermes and Qwen models write them: JSON between two marks.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Bergen"}}
    </tool_call>

They are read from the answer's committed text. Marks inside strings do not end a call, so a call is
the same however the text is cut into pieces. Anything but a call of a known function stays text, and
may hold calls itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from paceline.constraints.schema_length import COMPACT
from paceline.serve.schemas import Tool
from paceline.text import CALL_MARKS

OPEN, CLOSE = CALL_MARKS

_NO_CALL = re.compile(r"\s*[^\s{]")
"""After a mark, what cannot become a call."""
_IN_STRING, _OUTSIDE = re.compile(r'\\.|"', re.DOTALL), re.compile(f'"|{CLOSE}')


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
        self._inside = False  # whether it begins with white space and a mark
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
        while self._inside or (yield from self._until_mark()):
            if _NO_CALL.match(self._rest, self._body):
                yield self._no_call()
                continue
            end = self._end_of_call()
            if end is None and not ended:
                return
            body = self._rest[self._body : end]
            call = self._call(body[: len(body) - _begun(body, CLOSE)])
            if call is None:
                yield self._no_call()
            else:
                self._inside, self._rest = False, self._rest[self._body + len(body) :]
                yield call

    def _until_mark(self) -> Generator[str, None, bool]:
        """The text before a mark, or before what may become one; returns whether there is one.
        White space before a call is part of its notation."""
        begin = self._rest.find(OPEN)
        end = begin if begin >= 0 else len(self._rest) - _begun(self._rest, OPEN)
        said = len(self._rest[:end].rstrip())
        if said:
            yield self._rest[:said]
        self._rest = self._rest[said:]
        self._inside, self._in_string = begin >= 0, False
        self._body = self._scanned = begin - said + len(OPEN)
        return self._inside

    def _no_call(self) -> str:
        """The mark that no call follows: it is text, and what follows may hold others."""
        said, self._rest = self._rest[: self._body], self._rest[self._body :]
        self._inside = False
        return said

    def _end_of_call(self) -> int | None:
        """The end of the call that the rest begins with; None while it is unknown."""
        rest = self._rest
        while found := (_IN_STRING if self._in_string else _OUTSIDE).search(rest, self._scanned):
            self._scanned = found.end()
            if found[0] == CLOSE:
                return self._scanned
            if found[0] == '"':
                self._in_string = not self._in_string
        # A mark or an escape may end in the next piece.
        cut = rest.endswith("\\") if self._in_string else len(CLOSE) - 1
        self._scanned = max(self._scanned, len(rest) - cut)
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


def _begun(text: str, mark: str) -> int:
    """Length of the longest beginning of the mark that the text ends with."""
    return next((n for n in range(len(mark), 0, -1) if text.endswith(mark[:n])), 0)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _compact(schema: dict[str, Any]) -> str:
    """The schema with exactly the white space that these models are trained on."""
    return json.dumps({**schema, "x-guidance": COMPACT}, ensure_ascii=False)
