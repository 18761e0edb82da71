"""From the engine's news of a request to the objects of OpenAI's protocol, whole or as a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import time
from typing import Any
from uuid import uuid4

from paceline.completion import Completion
from paceline.records import TokenLogprob
from paceline.serve.answers import (
    Places,
    chat_logprobs,
    completion_logprobs,
    finish_reason,
    in_text,
    metrics_of,
    usage_of,
)
from paceline.serve.orders import tools_of
from paceline.serve.schemas import ChatRequest, NamedTool, TextRequest
from paceline.serve.ticket import News, Ticket
from paceline.serve.tools import CallReader, ToolCall
from paceline.text import Chunk, Tokenizer

__all__ = ["Answer", "ChatAnswer", "CompletionAnswer"]

Object = dict[str, Any]
Scores = Sequence[TokenLogprob]


class Answer(ABC):
    """Answers to one kind of request. kind: of the objects. suffix: of the kind for pieces of a
    stream. fingerprint: of model and server."""

    kind: str
    suffix: str

    def __init__(
        self, request: TextRequest, ticket: Ticket, tokenizer: Tokenizer, fingerprint: str
    ) -> None:
        prefix = "chatcmpl" if self.kind.startswith("chat") else "cmpl"
        self._heading: Object = {
            "id": f"{prefix}-{uuid4().hex}",
            "object": self.kind,
            "created": int(time()),
            "model": request.model,
            "system_fingerprint": fingerprint,
        }
        self._request, self._ticket, self._tokenizer = request, ticket, tokenizer
        self._with_logprobs = ticket.orders[0].options.logprobs is not None
        self._with_sources = bool(request.paceline and request.paceline.sources)
        self._held: dict[int, list[Chunk]] = {}
        self._scored = [0] * len(ticket.orders)  # tokens whose log-probabilities are in pieces
        options = request.stream_options
        self._with_usage = bool(options and options.include_usage)

    def whole(self, completions: Sequence[Completion]) -> Object:
        """The answer in one piece."""
        choices = [self._choice(place, each) for place, each in enumerate(completions)]
        return {**self._heading, "choices": choices, **self._end(completions)}

    @abstractmethod
    def begin(self) -> list[Object]:
        """The first pieces of a stream, before any text."""

    def pieces(self, news: News) -> list[Object]:
        """One round's news of one text, as pieces of a stream."""
        text = "".join(chunk.text for chunk in news.chunks)
        logprobs = self._logprobs_of(news)
        choices = self._text_pieces(news.index, text, logprobs) if text or logprobs else []
        if news.completion is not None:
            choices += self._last_pieces(news.index, news.completion)
        if self._with_sources:
            # Text that may be part of a call is held back, and so are its sources.
            held = [*self._held.pop(news.index, ()), *news.chunks]
            if choices and held:
                sources = [
                    {"text": each.text, "drafted": each.drafted, "sources": list(each.sources)}
                    for each in held
                ]
                choices[0]["paceline"] = {"pieces": sources}
            elif held:
                self._held[news.index] = held
        return [self._piece(choice) for choice in choices]

    def end(self, completions: Sequence[Completion]) -> list[Object]:
        """The last piece of a stream, with the usage, if requested."""
        end = self._end(completions)
        if not (self._with_usage or "metrics" in end):
            return []
        return [{**self._piece(), **end}]

    def _logprobs_of(self, news: News) -> Scores:
        """Those of a round's news, so that all pieces together have those of the whole answer:
        the last tokens may have no text, and text that ends with an end token does not have it."""
        found = tuple(each for chunk in news.chunks for each in chunk.logprobs)
        if news.completion is not None:
            known = slice(self._scored[news.index], in_text(news.completion))
            found = news.completion.logprobs[known]
        self._scored[news.index] += len(found)
        return found

    def _piece(self, *choices: Object) -> Object:
        piece = {**self._heading, "object": f"{self.kind}{self.suffix}", "choices": list(choices)}
        return {**piece, "usage": None} if self._with_usage else piece

    def _end(self, completions: Sequence[Completion]) -> Object:
        request, ticket = self._request, self._ticket
        extension = request.paceline
        predicted = request.prediction is not None or bool(extension and extension.references)
        end: Object = {"usage": usage_of(completions, request.n or 1, predicted)}
        if extension and extension.metrics and len(completions) == 1:
            end["metrics"] = metrics_of(completions[0].stats, ticket)
        return end

    def _part(
        self, index: int, found: Scores | None = None, reason: str | None = None, **content: Any
    ) -> Object:
        """A choice. found: log-probabilities, if it has any. reason: why the text has ended, if it
        has."""
        scored = None
        if found is not None and self._with_logprobs:
            scored = self._logprobs(index, found)
        return {"index": index, **content, "logprobs": scored, "finish_reason": reason}

    @abstractmethod
    def _logprobs(self, index: int, found: Scores) -> Object:
        """Log-probabilities of the next tokens of one text."""

    @abstractmethod
    def _choice(self, index: int, completion: Completion) -> Object:
        """One complete text."""

    @abstractmethod
    def _text_pieces(self, index: int, text: str, logprobs: Scores) -> list[Object]:
        """More of one text."""

    @abstractmethod
    def _last_pieces(self, index: int, completion: Completion) -> list[Object]:
        """The end of one text."""


class ChatAnswer(Answer):
    """Messages of the assistant, with their tool calls."""

    kind, suffix = "chat.completion", ".chunk"

    def __init__(
        self, request: ChatRequest, ticket: Ticket, tokenizer: Tokenizer, fingerprint: str
    ) -> None:
        super().__init__(request, ticket, tokenizer, fingerprint)
        self._names = [tool.function.name for tool in tools_of(request)]
        self._named = isinstance(request.tool_choice, NamedTool)
        self._readers = [CallReader(self._names) for _ in ticket.orders]
        self._calls = [0] * len(ticket.orders)

    def begin(self) -> list[Object]:
        """Every text's role, since clients expect texts to begin in index order."""
        return [
            self._piece(self._part(index, delta={"role": "assistant", "content": ""}))
            for index in range(len(self._ticket.orders))
        ]

    def _choice(self, index: int, completion: Completion) -> Object:
        found = [*self._read(index, completion.text), *self._readers[index].finish()]
        calls = [_whole_call(each) for each in found if isinstance(each, ToolCall)]
        text = "".join(each for each in found if isinstance(each, str))
        message: Object = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = calls
        said = completion.logprobs[: in_text(completion)]
        return self._part(index, said, self._reason(completion, bool(calls)), message=message)

    def _text_pieces(self, index: int, text: str, logprobs: Scores) -> list[Object]:
        pieces = self._found(index, self._read(index, text))
        if logprobs:
            pieces = pieces or [self._part(index, delta={})]
            pieces[0]["logprobs"] = self._logprobs(index, logprobs)
        return pieces

    def _last_pieces(self, index: int, completion: Completion) -> list[Object]:
        pieces = self._found(index, self._readers[index].finish())
        reason = self._reason(completion, bool(self._calls[index]))
        return [*pieces, self._part(index, reason=reason, delta={})]

    def _read(self, index: int, text: str) -> list[str | ToolCall]:
        return self._readers[index].feed(text) if self._names else [text]

    def _found(self, index: int, found: Sequence[str | ToolCall]) -> list[Object]:
        deltas: list[Object] = []
        for each in found:
            if isinstance(each, str):
                deltas.append({"content": each})
                continue
            place, self._calls[index] = self._calls[index], self._calls[index] + 1
            whole = _whole_call(each)
            head = {**whole, "index": place, "function": {**whole["function"], "arguments": ""}}
            rest = {"index": place, "function": {"arguments": each.arguments}}
            deltas += [{"tool_calls": [part]} for part in (head, rest)]
        return [self._part(index, delta=delta) for delta in deltas]

    def _logprobs(self, index: int, found: Scores) -> Object:
        return chat_logprobs(self._tokenizer, found)

    def _reason(self, completion: Completion, called: bool) -> str:
        """The finish reason; as at OpenAI, calls requested by name end with "stop"."""
        reason = finish_reason(completion)
        return "tool_calls" if called and reason == "stop" and not self._named else reason


class CompletionAnswer(Answer):
    """Continuations of prompts, which may be repeated."""

    kind, suffix = "text_completion", ""

    def __init__(
        self, request: TextRequest, ticket: Ticket, tokenizer: Tokenizer, fingerprint: str
    ) -> None:
        super().__init__(request, ticket, tokenizer, fingerprint)
        self._places = [Places() for _ in ticket.orders]

    def begin(self) -> list[Object]:
        """The prompts to repeat."""
        return [
            self._piece(self._part(index, text=order.echo))
            for index, order in enumerate(self._ticket.orders)
            if order.echo
        ]

    def _choice(self, index: int, completion: Completion) -> Object:
        said = completion.logprobs[: in_text(completion)]
        text = self._ticket.orders[index].echo + completion.text
        return self._part(index, said, finish_reason(completion), text=text)

    def _text_pieces(self, index: int, text: str, logprobs: Scores) -> list[Object]:
        return [self._part(index, logprobs, text=text)]

    def _last_pieces(self, index: int, completion: Completion) -> list[Object]:
        return [self._part(index, reason=finish_reason(completion), text="")]

    def _logprobs(self, index: int, found: Scores) -> Object:
        return completion_logprobs(self._tokenizer, found, self._places[index])


def _whole_call(call: ToolCall) -> Object:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
