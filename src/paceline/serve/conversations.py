"""Encode messages and prompts of requests as token ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from paceline.errors import UsageError
from paceline.json_files import parse_text_json
from paceline.serve.errors import ApiError, bad_request
from paceline.serve.schemas import Message, Tool
from paceline.session import Session
from paceline.text import CALL_MARKS, hidden_ids

_PER_TOKEN = {"messages": 1, "characters": 64}
"""Most that a token stands for on average, in any vocabulary: a longer prompt cannot fit."""
_PIECE = 1 << 16
"""Characters of a reference that are read at once: then others take their turn."""
_TEXTS = ("text", "refusal", "input_text", "output_text")
"""Types of parts of a message; the last two are the Responses API's."""
_ANY_TOOL = {"type": "function", "function": {"name": "f", "description": "f", "parameters": {}}}

_Objects = Sequence[Mapping[str, Any]]


class Reader:
    """Reads prompts for a session. Thread-safe: threads take turns, since not all of a tokenizer
    can be used concurrently."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turn = Lock()

    def chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Token ids of a conversation. Raises ApiError if the model's template rejects it."""
        conversation = [_as_template_has_it(message) for message in messages]
        functions = [tool.model_dump(exclude_none=True) for tool in tools]
        self._check_size(conversation, functions)
        with self._turn:
            try:
                self._check_tools(conversation, functions)
                # User input is text, even if it looks like control tokens.
                literal = self._holds_control_tokens(conversation, functions)
                if literal:
                    self._check_names([*conversation, *functions])
                tokens = self._session.encode(conversation, tools=functions, literal=literal)
                return self._checked(tokens, "messages")
            except UsageError as error:
                raise bad_request(str(error), "messages") from error

    def text(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a text, special tokens included; ids are returned unchanged."""
        if not prompt:
            raise bad_request("the prompt is empty: give at least one character", "prompt")
        if isinstance(prompt, str):
            self._check_room(len(prompt), "characters", "prompt")
        with self._turn:
            return self._checked(self._session.encode(prompt), "prompt")

    def plain(self, text: str, special: bool) -> list[int]:
        """Token ids of a text, which may be empty. special: add those that begin a prompt."""
        self._check_room(len(text), "characters", "prompt")
        with self._turn:
            if special and text:
                return self._session.encode(text)
            return self._session.encode_references([text])[0] if text else []

    def references(self, texts: Sequence[str], most: int) -> list[list[int]]:
        """Token ids of texts without special tokens. Raises ApiError for more than `most`."""
        found: list[list[int]] = []
        left = most
        for text in texts:
            found.append([])
            for place in range(0, len(text), _PIECE):
                with self._turn:
                    (tokens,) = self._session.encode_references([text[place : place + _PIECE]])
                found[-1] += tokens
                left -= len(tokens)
                if left < 0:
                    raise bad_request(
                        f"references and prediction may have {most} tokens in all: shorten them",
                        "paceline.references",
                    )
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special ones included."""
        self.check_vocabulary(tokens, "tokens")
        tokenizer = self._session.tokenizer
        with self._turn:
            return tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)

    def check_vocabulary(self, tokens: Sequence[int], param: str) -> None:
        """Raise ApiError for an id beyond the model's vocabulary."""
        size = self._session.target.vocab_size
        if tokens and max(tokens) >= size:
            raise bad_request(f"token ids must be below {size}, got {max(tokens)}", param)

    def _holds_control_tokens(self, conversation: _Objects, tools: _Objects) -> bool:
        """Whether anybody wrote a control token. What the model may have written, such as the mark
        of a thought or call, is one only in the words of others."""
        answers = [each["content"] for each in conversation if each["role"] == "assistant"]
        others = [
            {**each, "content": ""} if each["role"] == "assistant" else each
            for each in conversation
        ]
        tokenizer = self._session.tokenizer
        added = getattr(tokenizer, "added_tokens_encoder", {})
        hidden = hidden_ids(tokenizer)
        try:
            return _names_any(added, [*others, *tools]) or _names_any(
                [token for token, number in added.items() if number in hidden], answers
            )
        except RecursionError:
            return True  # the template will say so

    def _check_names(self, objects: _Objects) -> None:
        """Raise ApiError for names in tools and calls that hold control tokens: `encode` makes text
        only of values."""
        tokenizer = self._session.tokenizer
        hidden, added = hidden_ids(tokenizer), getattr(tokenizer, "added_tokens_encoder", {})
        control = [each for each, number in added.items() if number in hidden or each in CALL_MARKS]
        if _names_any(control, _names(objects)):
            raise bad_request("names in tools and calls must not hold control tokens", "messages")

    def _check_tools(self, conversation: _Objects, tools: _Objects) -> None:
        """Raise ApiError for tools, calls and results that the template would drop silently."""
        used = any(each["role"] == "tool" or "tool_calls" in each for each in conversation)
        if not (tools or used) or self._takes_tools:
            return
        why = "this model's chat template does not support tools"
        if tools:
            raise bad_request(why, "tools")
        raise bad_request(f"{why}: leave out the messages with calls and results", "messages")

    @cached_property
    def _takes_tools(self) -> bool:
        """Whether the template takes tools: one that does not drops them silently."""
        asked = [{"role": "user", "content": "?"}]
        with_tool = self._session.encode(asked, tools=[_ANY_TOOL])
        return self._session.encode(asked) != with_tool

    def _check_size(self, conversation: _Objects, tools: _Objects) -> None:
        self._check_room(len(conversation), "messages", "messages")
        self._check_room(_characters(tools), "characters", "tools")
        beside = [
            {name: value for name, value in each.items() if name not in ("role", "content")}
            for each in conversation
        ]
        said = sum(len(each["content"]) for each in conversation)
        more = _characters([*tools, *filter(None, beside)])
        self._check_room(said + more, "characters", "messages")

    def _check_room(self, count: int, what: str, param: str) -> None:
        """Raise ApiError for messages or characters that cannot fit, before others wait for their
        tokens."""
        most = self._session.target.max_context
        if most is not None and count > _PER_TOKEN[what] * most:
            raise _too_long(most, f"too few for {count} {what}", param)

    def _checked(self, tokens: list[int], param: str) -> list[int]:
        self.check_vocabulary(tokens, param)
        most = self._session.target.max_context
        if most is not None and len(tokens) >= most:
            raise _too_long(most, f"but the prompt alone has {len(tokens)}", param)
        return tokens


def joined_text(content: str | _Objects | None, param: str, between: str) -> str:
    """The text of a content field. Raises ApiError for parts that are not text: no image, file or
    URL is ever fetched."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in _TEXTS:
            raise bad_request(f"{param}: parts of type {str(kind)[:40]!r} are not supported", param)
        if not isinstance(text, str):
            raise bad_request(f"{param}: a text part has no text", param)
        texts.append(text)
    return between.join(texts)


def _too_long(most: int, why: str, param: str) -> ApiError:
    message = f"the model's context is {most} tokens, {why}"
    return bad_request(message, param, "context_length_exceeded")


def _characters(values: Sequence[Any]) -> int:
    """Characters of values as templates write them. Raises ApiError if they are nested deeply."""
    try:
        return len(json.dumps(values, ensure_ascii=False)) if values else 0
    except RecursionError as error:
        raise bad_request("tools or calls are nested too deeply", "messages") from error


def _names_any(tokens: Iterable[str], values: Sequence[Any]) -> bool:
    said = json.dumps(values, ensure_ascii=False)
    return any(json.dumps(token, ensure_ascii=False)[1:-1] in said for token in tokens)


def _names(values: Iterable[Any]) -> list[str]:
    """The names of all fields, at any depth."""
    found, left = list[str](), [*values]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            found += each
            left += each.values()
        elif isinstance(each, list):
            left += each
    return found


def _as_template_has_it(message: Message) -> dict[str, Any]:
    if message.function_call is not None:  # templates would drop it silently
        raise bad_request(
            "messages: 'function_call' is not supported: use 'tool_calls'", "messages"
        )
    said: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": joined_text(message.content, "messages", "\n"),
    }
    if message.role == "assistant" and message.tool_calls:
        said["tool_calls"] = [_call(call) for call in message.tool_calls]
    elif message.content is None:
        raise bad_request(f"messages: a message of role {message.role} has no content", "messages")
    if message.role == "tool":
        said |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return said


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call of an earlier turn. Templates expect the arguments as an object."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request("messages: a tool call has no function name", "messages")
    arguments = function.get("arguments")
    if arguments in (None, ""):  # as some clients write a call without arguments
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = parse_text_json(arguments)
        except ValueError as error:
            raise bad_request(
                "messages: the arguments of a tool call are not JSON, or have a lone surrogate",
                "messages",
            ) from error
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }
