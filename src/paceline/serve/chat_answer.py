"""Answers to `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.completion import Completion
from paceline.records import TokenLogprob
from paceline.serve.answering import Answer
from paceline.serve.answers import chat_logprobs, finish_reason, in_text
from paceline.serve.orders import tools_of
from paceline.serve.schemas import ChatRequest, NamedTool
from paceline.serve.ticket import Ticket
from paceline.serve.tools import CallReader, ToolCall
from paceline.text import Tokenizer

__all__ = ["ChatAnswer"]


class ChatAnswer(Answer):
    """Messages of the assistant, with their tool calls."""

    kind, part = "chat.completion", ".chunk"

    def __init__(
        self, request: ChatRequest, ticket: Ticket, tokenizer: Tokenizer, fingerprint: str
    ) -> None:
        super().__init__(request, ticket, tokenizer, fingerprint)
        self._names = [tool.function.name for tool in tools_of(request)]
        self._named = isinstance(request.tool_choice, NamedTool)
        self._readers = [CallReader(self._names) for _ in ticket.orders]
        self._calls = [0] * len(ticket.orders)

    def begin(self) -> list[dict[str, Any]]:
        """Every text's role, since clients expect texts to begin in index order."""
        opening = {"role": "assistant", "content": ""}
        return [
            self._piece([self._delta(index, dict(opening))])
            for index in range(len(self._ticket.orders))
        ]

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        found: list[str | ToolCall] = [completion.text]
        if self._names:
            reader = CallReader(self._names)
            found = [*reader.feed(completion.text), *reader.finish()]
        calls = [_whole_call(each) for each in found if isinstance(each, ToolCall)]
        text = "".join(each for each in found if isinstance(each, str))
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = calls
        said = completion.logprobs[: in_text(completion)]
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(self._tokenizer, said) if self._with_logprobs else None,
            "finish_reason": self._reason(completion, bool(calls)),
        }

    def _text_pieces(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob]
    ) -> list[dict[str, Any]]:
        found = self._readers[index].feed(text) if self._names else [text]
        pieces = self._found(index, found)
        if logprobs:
            pieces = pieces or [self._delta(index, {})]
            pieces[0]["logprobs"] = chat_logprobs(self._tokenizer, logprobs)
        return pieces

    def _last_pieces(self, index: int, completion: Completion) -> list[dict[str, Any]]:
        pieces = self._found(index, self._readers[index].finish())
        reason = self._reason(completion, bool(self._calls[index]))
        return [*pieces, {**self._delta(index, {}), "finish_reason": reason}]

    def _found(self, index: int, found: Sequence[str | ToolCall]) -> list[dict[str, Any]]:
        pieces = []
        for each in found:
            if isinstance(each, str):
                pieces.append(self._delta(index, {"content": each}))
                continue
            place, self._calls[index] = self._calls[index], self._calls[index] + 1
            whole = _whole_call(each)
            head = {**whole, "index": place, "function": {**whole["function"], "arguments": ""}}
            rest = {"index": place, "function": {"arguments": each.arguments}}
            pieces += [self._delta(index, {"tool_calls": [part]}) for part in (head, rest)]
        return pieces

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _reason(self, completion: Completion, called: bool) -> str:
        """The finish reason; as at OpenAI, calls requested by name end with "stop"."""
        reason = finish_reason(completion)
        return "tool_calls" if called and reason == "stop" and not self._named else reason


def _whole_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
