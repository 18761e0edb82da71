"""From the engine's news of a request to the objects of OpenAI's protocol, whole or as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any
from uuid import uuid4

from paceline.records import TokenLogprob
from paceline.serve.answers import (
    Places,
    chat_logprobs,
    completion_logprobs,
    finish_reason,
    metrics_of,
    usage_of,
)
from paceline.serve.errors import ApiError
from paceline.serve.orders import tools_of
from paceline.serve.schemas import ChatRequest, NamedTool, TextRequest
from paceline.serve.ticket import News, Order, Ticket
from paceline.serve.tools import CallReader, ToolCall
from paceline.stream import Chunk, Completion
from paceline.text import Tokenizer

Object = dict[str, Any]
Scores = Sequence[TokenLogprob]


class Answer:
    """The answer to a request. fingerprint: of model and server. end_mark: the end of a stream."""

    end_mark = "data: [DONE]\n\n"

    def __init__(
        self, request: TextRequest, ticket: Ticket, tokenizer: Tokenizer, fingerprint: str
    ) -> None:
        chat = isinstance(request, ChatRequest)
        kind = "chat.completion" if chat else "text_completion"
        self._kind_of_pieces = f"{kind}.chunk" if chat else kind
        self._heading: Object = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}",
            "object": kind,
            "created": int(time()),
            "model": request.model,
            "system_fingerprint": fingerprint,
        }
        self._request, self._ticket = request, ticket
        text: type[Text] = _Message if chat else Text
        orders = enumerate(ticket.orders)
        self._texts = [text(request, index, order, tokenizer) for index, order in orders]
        options = request.stream_options
        self._with_usage = bool(options and options.include_usage)

    def whole(self, completions: Sequence[Completion]) -> Object:
        """The answer in one piece."""
        choices = [text.whole(each) for text, each in zip(self._texts, completions, strict=True)]
        end = end_of(self._request, self._ticket, completions)
        return {**self._heading, "choices": choices, **end}

    def begin(self) -> list[Object]:
        """The first pieces of a stream, before any new text."""
        return [self._piece(choice) for text in self._texts for choice in text.begin()]

    def pieces(self, news: News) -> list[Object]:
        """One round's news of one text, as pieces of a stream."""
        return [self._piece(choice) for choice in self._texts[news.index].pieces(news)]

    def end(self, completions: Sequence[Completion]) -> list[Object]:
        """The last piece of a stream, with the usage, if requested."""
        end = end_of(self._request, self._ticket, completions)
        if not (self._with_usage or "metrics" in end):
            return []
        return [{**self._piece(), **end}]

    def failed(self, error: ApiError) -> Object:
        """The last piece of a stream that fails."""
        return error.body

    def _piece(self, *choices: Object) -> Object:
        piece = {**self._heading, "object": self._kind_of_pieces, "choices": list(choices)}
        return {**piece, "usage": None} if self._with_usage else piece


def end_of(request: TextRequest, ticket: Ticket, completions: Sequence[Completion]) -> Object:
    """The usage, and the metrics if they are requested."""
    extension = request.paceline
    predicted = request.prediction is not None or bool(extension and extension.references)
    end: Object = {"usage": usage_of(completions, request.n or 1, predicted)}
    if extension and extension.metrics and len(completions) == 1:
        end["metrics"] = metrics_of(completions[0].stats, ticket)
    return end


class Text:
    """One text of an answer: its choices. Here it goes on with a prompt, which may be repeated."""

    def __init__(
        self, request: TextRequest, index: int, order: Order, tokenizer: Tokenizer
    ) -> None:
        self._index, self._order, self._tokenizer = index, order, tokenizer
        self._places = Places()
        self._with_sources = bool(request.paceline and request.paceline.sources)
        self._held: list[Chunk] = []
        self._scored = 0  # tokens whose log-probabilities are in pieces

    def pieces(self, news: News) -> list[Object]:
        """A round's news, as choices of as many pieces."""
        text = "".join(chunk.text for chunk in news.chunks)
        scores = self._new_scores(news)
        choices = self._more(text, scores) if text or scores else []
        if news.completion is not None:
            choices += self._last(news.completion)
        if self._with_sources:
            # Text that may be part of a call is held back, and so are its sources.
            self._held += news.chunks
            if choices and self._held:
                sources = [
                    {"text": each.text, "drafted": each.drafted, "sources": list(each.sources)}
                    for each in self._held
                ]
                choices[0]["paceline"] = {"pieces": sources}
                self._held = []
        return choices

    def _new_scores(self, news: News) -> Scores:
        """Those of a round's news, so that all pieces together have those of the whole answer:
        the last tokens may have no text, and text that ends with an end token does not have it."""
        if news.completion is None:
            found: Scores = [each for chunk in news.chunks for each in chunk.logprobs]
        else:
            found = self._unscored(news.completion)
        self._scored += len(found)
        return found

    def _unscored(self, completion: Completion) -> Scores:
        """Those that are in no piece yet, without an end token's, which is no part of the text."""
        ends = completion.finish_reason == "eos"
        return completion.logprobs[self._scored : len(completion.tokens) - ends]

    def _choice(
        self, scores: Scores | None = None, reason: str | None = None, **content: Any
    ) -> Object:
        """scores: of its text, if it has any. reason: why the text has ended, if it has."""
        logprobs = None
        if scores is not None and self._order.options.logprobs is not None:
            logprobs = self._logprobs(scores)
        return {"index": self._index, **content, "logprobs": logprobs, "finish_reason": reason}

    def begin(self) -> list[Object]:
        """What comes before any new text: the prompt to repeat."""
        return [self._choice(text=self._order.echo)] if self._order.echo else []

    def whole(self, completion: Completion) -> Object:
        """The complete text."""
        text = self._order.echo + completion.text
        return self._choice(self._unscored(completion), finish_reason(completion), text=text)

    def _more(self, text: str, scores: Scores) -> list[Object]:
        return [self._choice(scores, text=text)]

    def _last(self, completion: Completion) -> list[Object]:
        return [self._choice(reason=finish_reason(completion), text="")]

    def _logprobs(self, scores: Scores) -> Object:
        return completion_logprobs(self._tokenizer, scores, self._places)


class _Message(Text):
    """A message of the assistant, with its tool calls."""

    def __init__(
        self, request: ChatRequest, index: int, order: Order, tokenizer: Tokenizer
    ) -> None:
        super().__init__(request, index, order, tokenizer)
        self._names = [tool.function.name for tool in tools_of(request)]
        self._named = isinstance(request.tool_choice, NamedTool)
        self._reader = CallReader(self._names)
        self._calls = 0

    def begin(self) -> list[Object]:
        """The role, since clients expect texts to begin in index order."""
        return [self._choice(delta={"role": "assistant", "content": ""})]

    def whole(self, completion: Completion) -> Object:
        found = [*self._read(completion.text), *self._reader.finish()]
        calls = [_whole_call(each) for each in found if isinstance(each, ToolCall)]
        text = "".join(each for each in found if isinstance(each, str))
        content = text if text or not calls else None
        message: Object = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        reason = self._reason(completion, bool(calls))
        return self._choice(self._unscored(completion), reason, message=message)

    def _more(self, text: str, scores: Scores) -> list[Object]:
        choices = self._found(self._read(text))
        if scores:
            choices = choices or [self._choice(delta={})]
            choices[0]["logprobs"] = self._logprobs(scores)
        return choices

    def _last(self, completion: Completion) -> list[Object]:
        choices = self._found(self._reader.finish())
        reason = self._reason(completion, bool(self._calls))
        return [*choices, self._choice(reason=reason, delta={})]

    def _read(self, text: str) -> list[str | ToolCall]:
        return self._reader.feed(text) if self._names else [text]

    def _found(self, found: Sequence[str | ToolCall]) -> list[Object]:
        deltas: list[Object] = []
        for each in found:
            if isinstance(each, str):
                deltas.append({"content": each})
                continue
            whole, place = _whole_call(each), self._calls
            head = {**whole, "index": place, "function": {**whole["function"], "arguments": ""}}
            rest = {"index": place, "function": {"arguments": each.arguments}}
            deltas += [{"tool_calls": [part]} for part in (head, rest)]
            self._calls += 1
        return [self._choice(delta=delta) for delta in deltas]

    def _logprobs(self, scores: Scores) -> Object:
        return chat_logprobs(self._tokenizer, scores)

    def _reason(self, completion: Completion, called: bool) -> str:
        """The finish reason; as at OpenAI, calls requested by name end with "stop"."""
        reason = finish_reason(completion)
        return "tool_calls" if called and reason == "stop" and not self._named else reason


def _whole_call(call: ToolCall) -> Object:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
