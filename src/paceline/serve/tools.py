"""Tool calls in an answer: JSON between two marks, as Hermes and Qwen models write them,

    <tool_call>
    {"name": "weather", "arguments": {"city": "Bergen"}}
    </tool_call>

in a block of code marked as JSON (Qwen2.5-Coder), or alone at the beginning of the answer (Llama 3,
with "parameters"; Mistral, as a list).

Calls are read from the answer's committed text. Marks inside strings do not end a call, so a call is
the same however the text is cut into pieces. Anything but calls of known functions stays text, and
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
"""Characters from the beginning of JSON that show whether it may be a call."""
_BETWEEN = ";"
"""Between calls of Llama 3, besides white space."""
_BEFORE = re.compile(rf"[\s{_BETWEEN}]*({{(?={{))?")
"""What comes before the JSON of a call; of two braces, the first one."""


@dataclass(frozen=True)
class _Notation:
    """How calls may be written: between two marks, which is nothing for JSON alone. begins: of the
    JSON, without white space; any other is part of an answer, which is not to be held back. without:
    the arguments of a call that has none; None if such a call is no call."""

    open: str
    close: str
    begins: tuple[str, ...] = ('{"name":', '[{"name":', '{{"name":')
    without: dict[str, Any] | None = None

    @cached_property
    def outside(self) -> re.Pattern[str]:
        """What to look for outside of strings."""
        return re.compile(f'"|{self.close}' if self.close else r'["\[\]{}]')

    def may_begin(self, text: str) -> bool:
        """Whether calls may follow a mark that this text follows."""
        begun = "".join(text.split()).lstrip(_BETWEEN)
        return any(begun.startswith(each) or each.startswith(begun) for each in self.begins)


_MARKED = (_Notation(OPEN, CLOSE, ("{", "[{"), {}), _Notation("```json", "```"))
_ALONE = _Notation("", "")


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
        self._called = False
        self._inside: _Notation | None = _ALONE  # what it begins with, after white space
        self._body = 0  # where the JSON begins, then
        self._scanned = 0
        self._in_string, self._depth = False, 0

    def feed(self, text: str) -> list[str | ToolCall]:
        """Read another piece of the answer; returns the texts and calls now certain, in order."""
        self._rest += text
        return list(self._certain())

    def finish(self) -> list[str | ToolCall]:
        """The rest, after the answer's end: a call that lacks only its closing mark, or part of it,
        still counts. White space after calls is not text."""
        found = list(self._certain(ended=True))
        rest, self._rest = self._rest, ""
        return [*found, rest] if rest and not (self._called and rest.isspace()) else found

    def _certain(self, ended: bool = False) -> Iterator[str | ToolCall]:
        while notation := self._inside or (yield from self._until_mark()):
            may_begin = notation.may_begin(self._rest[self._body : self._body + _LOOKED_AT])
            if not may_begin or (ended and not self._is_json_at_body()):
                yield from self._no_call()
                continue
            end = self._end_of_json(notation)
            if end is None and not ended:
                return
            body = self._rest[self._body : end]
            calls = self._calls(body[: len(body) - _begun(body, notation.close)], notation)
            if not calls:
                yield from self._no_call()
                continue
            yield from calls
            self._called = True
            self._rest = self._rest[self._body + len(body) :]
            self._begin(None if notation.close else notation, 0)

    def _until_mark(self) -> Generator[str, None, _Notation | None]:
        """The text before a mark, or before what may become one; returns the mark's notation.
        White space before a call is part of its notation."""
        placed = [(self._rest.find(each.open), each) for each in _MARKED]
        begin, found = min(
            ((place, each) for place, each in placed if place >= 0),
            key=lambda one: one[0],
            default=(
                len(self._rest) - max(_begun(self._rest, each.open) for each in _MARKED),
                None,
            ),
        )
        said = len(self._rest[:begin].rstrip())
        if said:
            yield self._rest[:said]
        self._rest = self._rest[said:]
        self._begin(found, begin - said + len(found.open) if found else 0)
        return found

    def _begin(self, notation: _Notation | None, body: int) -> None:
        self._inside, self._body, self._scanned = notation, body, body
        self._in_string, self._depth = False, 0

    def _no_call(self) -> Iterator[str]:
        """The mark that no call follows: it is text, and what follows may hold others."""
        said, self._rest = self._rest[: self._body], self._rest[self._body :]
        self._inside = None
        if said:
            yield said

    def _is_json_at_body(self) -> bool:
        """Whether JSON begins there and ends somewhere. Usually fails early, where looking for its
        end again after each of many marks would take seconds."""
        begin = _BEFORE.match(self._rest, self._body)
        try:
            json.JSONDecoder().raw_decode(self._rest, begin.end() if begin else self._body)
        except (ValueError, RecursionError):
            return False
        return True

    def _end_of_json(self, notation: _Notation) -> int | None:
        """The end of the JSON that the rest begins with, and of its closing mark; None while it is
        unknown."""
        rest = self._rest
        while found := (_IN_STRING if self._in_string else notation.outside).search(
            rest, self._scanned
        ):
            self._scanned = found.end()
            if self._in_string or found[0] == '"':
                self._in_string ^= found[0] == '"'
                continue
            self._depth += 1 if found[0] in "{[" else -1
            if self._depth <= 0:  # a mark closes what no bracket opened
                return self._scanned
        # A mark or an escape may end in the next piece.
        cut = rest.endswith("\\") if self._in_string else max(0, len(notation.close) - 1)
        self._scanned = max(self._scanned, len(rest) - cut)
        return None

    def _calls(self, text: str, notation: _Notation) -> list[ToolCall]:
        """The calls that this JSON stands for; none if any of it is something else."""
        try:
            text = text.strip().lstrip(_BETWEEN)
            if text.startswith("{{") and text.endswith("}}"):
                text = text[1:-1]  # as Qwen's template shows calls by mistake
            found = json.loads(text)
            calls = []
            for each in found if isinstance(found, list) else [found]:
                arguments = each.get("arguments", each.get("parameters", notation.without))
                if each["name"] not in self._names or not isinstance(arguments, dict):
                    return []
                # Escapes stay escapes: half a character has no other form. NaN is an error.
                escaped = "\\u" in text
                written = json.dumps(arguments, ensure_ascii=escaped, allow_nan=False)
                calls.append(ToolCall(each["name"], written))
            return calls
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return []


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
