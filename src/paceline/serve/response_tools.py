"""Tools of requests of OpenAI's Responses API: functions, alone or in namespaces.

Coding agents also offer tools that OpenAI's servers run, or whose input is no JSON. The model is not
told of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from paceline.serve.errors import bad_request
from paceline.serve.logs import log
from paceline.serve.schemas import (
    LONGEST_NAME,
    MOST_TOOLS,
    Function,
    FunctionName,
    ListOf,
    Name,
    Shape,
)


class _OfFunctions(Shape):
    type: Literal["function"]


class FunctionTool(Function, _OfFunctions):
    """A function that the model may call."""


class FunctionChoice(FunctionName, _OfFunctions):
    """The one function that must be called."""


class OtherTool(Shape):
    """A tool that the model is not told of."""

    type: str


def _kind(tool: Any) -> str | None:
    kind = tool.get("type") if isinstance(tool, Mapping) else getattr(tool, "type", None)
    return kind if kind in ("function", "namespace", None) else "other"


_BY_KIND = Discriminator(
    _kind, custom_error_type="tool", custom_error_message="Input should be a tool with a 'type'"
)
_Function = Annotated[FunctionTool, Tag("function")]
_Other = Annotated[OtherTool, Tag("other")]


class Namespace(Shape):
    """Functions of one subject, such as those of an MCP server."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: ListOf[Annotated[_Function | _Other, _BY_KIND]]


Tool = Annotated[_Function | Annotated[Namespace, Tag("namespace")] | _Other, _BY_KIND]


@dataclass(frozen=True)
class NamedFunction:
    """A function as the model knows it. name: that of the tool, after its namespace if it has one."""

    name: str
    tool: FunctionTool
    namespace: str | None

    def as_in_chats(self) -> dict[str, Any]:
        """The function as a tool of a chat."""
        return {"type": "function", "function": {**self.tool.model_dump(), "name": self.name}}


def full_name(name: str, namespace: str | None) -> str:
    """What the model calls a function."""
    return f"{namespace}.{name}" if namespace else name


def functions_of(tools: Sequence[Tool]) -> list[NamedFunction]:
    """The functions among tools. Raises ApiError for more than chats allow, or longer names."""
    found = [
        NamedFunction(full_name(each.name, space), each, space)
        for space, each in _flat(tools)
        if isinstance(each, FunctionTool)
    ]
    if len(found) > MOST_TOOLS:
        raise bad_request(f"tools: there may be {MOST_TOOLS} functions in all", "tools")
    for each in found:
        if len(each.name) > LONGEST_NAME:
            raise bad_request(f"tools: {each.name!r} has more than {LONGEST_NAME} letters", "tools")
    return found


def log_others(tools: Sequence[Tool]) -> None:
    """Log which kinds of tools the model is not told of."""
    others = {each.type[:40] for _, each in _flat(tools) if isinstance(each, OtherTool)}
    if others:
        log("tools left out", types=sorted(others))


def _flat(tools: Sequence[Tool]) -> Iterator[tuple[str | None, FunctionTool | OtherTool]]:
    for tool in tools:
        if isinstance(tool, Namespace):
            yield from ((tool.name, each) for each in tool.tools)
        else:
            yield None, tool
