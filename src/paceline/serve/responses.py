"""Requests of OpenAI's Responses API, read as chats.

Nothing is kept between requests, so the whole conversation comes as `input`: messages, calls and their
results, as the outputs of earlier answers have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from paceline.serve.conversations import joined_text
from paceline.serve.errors import ApiError, bad_request
from paceline.serve.response_tools import (
    FunctionChoice,
    NamedFunction,
    Tool,
    full_name,
    functions_of,
)
from paceline.serve.schemas import ChatRequest, Limit, ListOf, Shape, TextRequest

_LOGPROBS = "message.output_text.logprobs"
"""In `include`: log-probabilities, too."""

_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""Fields of chats by the name that they have here."""
_NAMED = re.compile(rf"(?<=')({'|'.join(_NAMES)})(?=')|^messages(?=:)")

_Content = str | ListOf[dict[str, Any]]


class InputMessage(Shape):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: _Content


class InputCall(Shape):
    """A call in an earlier answer."""

    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class InputResult(Shape):
    """What a call returned."""

    call_id: str
    output: _Content


class InputReasoning(Shape):
    """Another model's thoughts, which no template has a place for."""


def _as_items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _kind(item: Any) -> Any:
    """Clients leave out the type of messages."""
    return (item.get("type") or "message") if isinstance(item, Mapping) else None


_Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputResult, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(_kind, custom_error_type="item", custom_error_message=(
        "Input should be a message, a 'function_call' or a 'function_call_output'"
    )),
]  # fmt: skip


class TextFormat(Shape):
    """What the answer must be: any text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextConfig(Shape):
    """Options of the text."""

    format: TextFormat | None = None


class ResponsesRequest(TextRequest):
    """The body of `/v1/responses`."""

    input: Annotated[ListOf[_Item], BeforeValidator(_as_items), Field(min_length=1)]
    instructions: str | None = None
    n: Literal[1] | None = None
    max_output_tokens: Limit | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: ListOf[str] | None = None
    text: TextConfig | None = None
    tools: ListOf[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None

    @property
    def limit(self) -> int | None:
        """See `TextRequest.limit`."""
        return self.max_output_tokens or self.max_tokens

    @property
    def functions(self) -> list[NamedFunction]:
        """The functions that the answer may call."""
        return [] if self.tool_choice == "none" else functions_of(self.tools or [])

    def as_chat(self) -> ChatRequest:
        """The chat that asks for the same. Raises ApiError for input that is no text."""
        scored = self.top_logprobs is not None or _LOGPROBS in (self.include or ())
        chosen: Any = self.tool_choice
        if isinstance(chosen, FunctionChoice):
            chosen = {"type": "function", "function": {"name": chosen.name}}
        return ChatRequest.model_validate(
            {
                **{name: getattr(self, name) for name in TextRequest.model_fields},
                "messages": self._messages(),
                "max_completion_tokens": self.limit,
                "logprobs": scored,
                "top_logprobs": self.top_logprobs,
                "response_format": self._format(),
                "tools": [each.as_in_chats() for each in functions_of(self.tools or [])] or None,
                "tool_choice": chosen,
                "parallel_tool_calls": self.parallel_tool_calls,
            }
        )

    def _messages(self) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        if self.instructions:
            said.append({"role": "system", "content": self.instructions})
        for item in self.input:
            _add(said, item)
        if not said:
            raise bad_request("'input' has no message", "input")
        return said

    def _format(self) -> dict[str, Any] | None:
        wanted = self.text.format if self.text else None
        if wanted is None:
            return None
        if wanted.type == "json_schema" and wanted.schema_ is None:
            raise bad_request("'text.format' needs 'schema'", "text.format")
        return {"type": wanted.type, "schema": wanted.schema_}


def renamed(error: ApiError) -> ApiError:
    """An error of a chat, with the fields' names here."""
    message = _NAMED.sub(lambda found: _NAMES[found[0]], error.message)
    param = _NAMES.get(error.param or "", error.param)
    return ApiError(error.status, message, param=param, code=error.code, headers=error.headers)


def _add(said: list[dict[str, Any]], item: BaseModel) -> None:
    """Add an item to the messages. Calls belong to the message before, if that is an answer."""
    if isinstance(item, InputMessage):
        said.append({"role": item.role, "content": joined_text(item.content, "input", "\n")})
    elif isinstance(item, InputCall):
        name = full_name(item.name, item.namespace)
        function = {"name": name, "arguments": item.arguments}
        if not said or said[-1]["role"] != "assistant":
            said.append({"role": "assistant", "content": None})
        calls = said[-1].setdefault("tool_calls", [])
        calls.append({"id": item.call_id, "type": "function", "function": function})
    elif isinstance(item, InputResult):
        said.append(
            {
                "role": "tool",
                "content": joined_text(item.output, "input", "\n"),
                "tool_call_id": item.call_id,
                "name": _called(said, item.call_id),
            }
        )


def _called(said: Sequence[Mapping[str, Any]], call_id: str) -> str:
    """The name of the function that an earlier call named."""
    for message in reversed(said):
        for call in message.get("tool_calls", ()):
            if call["id"] == call_id:
                return str(call["function"]["name"])
    raise bad_request(f"input: there is no call {call_id[:100]!r} before its output", "input")
