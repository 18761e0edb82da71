"""The items of an answer in OpenAI's Responses API, messages and calls, with the events that build them
up in a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from paceline.serve.answering import Object, Scores, Text
from paceline.serve.answers import chat_logprobs
from paceline.serve.responses import ResponsesRequest
from paceline.serve.ticket import Order
from paceline.serve.tools import CallReader, ToolCall
from paceline.stream import Completion
from paceline.text import Tokenizer

BEGUN, ENDED, CUT = "in_progress", "completed", "incomplete"
"""The status of an answer and of its items. CUT: at the limit of tokens."""


@dataclass
class _Message:
    """The message that is being written, with its log-probabilities."""

    text: str = ""
    logprobs: list[Object] = field(default_factory=list)
    id: str = field(default_factory=lambda: f"msg_{uuid4().hex}")

    @property
    def part(self) -> Object:
        """Its only part."""
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": [*self.logprobs],
        }

    def item(self, status: str) -> Object:
        """The message as it is, without its part if it has just begun."""
        content = [] if status == BEGUN else [self.part]
        head = {"id": self.id, "type": "message", "role": "assistant", "status": status}
        return {**head, "content": content}


class Items(Text):
    """The items of an answer. finished: those that have ended, in order."""

    def __init__(self, request: ResponsesRequest, order: Order, tokenizer: Tokenizer) -> None:
        super().__init__(request, 0, order, tokenizer)
        self.finished: list[Object] = []
        self._functions = {each.name: each for each in request.functions}
        self._reader = CallReader(self._functions)
        self._message: _Message | None = None
        self._fed = 0  # characters read
        self._unsaid: list[Object] = []  # log-probabilities that no event has yet

    def whole(self, completion: Completion) -> Object:
        """Read the complete text at once. The items are in `finished`."""
        self._more(completion.text, self._unscored(completion))
        self._last(completion)
        return {"output": self.finished}

    def _more(self, text: str, scores: Scores) -> list[Object]:
        if self._order.options.logprobs is None:
            return self._read(text)
        events: list[Object] = []
        logprobs = chat_logprobs(self._tokenizer, scores)["content"]
        # Token by token, since those of a call are in no message.
        for place, logprob in zip(self._places.of(self._tokenizer, scores), logprobs):
            before = max(0, place - self._fed)
            events += self._read(text[:before])
            text = text[before:]
            self._unsaid.append(logprob)
        return events + self._read(text)

    def _read(self, text: str) -> list[Object]:
        self._fed += len(text)
        found = self._reader.feed(text) if self._functions else [text]
        return self._events(found) if text else []

    def _last(self, completion: Completion) -> list[Object]:
        events = self._events(self._reader.finish())
        if not self.finished and self._message is None:
            events += self._say("")
        return events + self._close(CUT if completion.finish_reason == "length" else ENDED)

    def _events(self, found: Sequence[str | ToolCall]) -> list[Object]:
        events: list[Object] = []
        for each in found:
            events += self._say(each) if isinstance(each, str) else self._call(each)
        return events

    def _say(self, text: str) -> list[Object]:
        """Continue the message, or begin one."""
        begun: list[Object] = []
        if self._message is None:
            self._message = _Message()
            begun = [
                self._event("output_item.added", item=self._message.item(BEGUN)),
                self._event("content_part.added", part=self._message.part),
            ]
        logprobs, self._unsaid = self._unsaid, []
        self._message.text += text
        self._message.logprobs += logprobs
        return [*begun, self._event("output_text.delta", delta=text, logprobs=logprobs)]

    def _close(self, status: str = ENDED) -> list[Object]:
        """End the message, if there is one."""
        events = self._say("") if self._message and self._unsaid else []  # tokens without text
        if self._message is None:
            return []
        part, item = self._message.part, self._message.item(status)
        events += [
            self._event("output_text.done", text=part["text"], logprobs=part["logprobs"]),
            self._event("content_part.done", part=part),
            self._event("output_item.done", item=item),
        ]
        self._message = None
        self.finished.append(item)
        return events

    def _call(self, call: ToolCall) -> list[Object]:
        """A call, which is known as a whole. Its tokens have no place for log-probabilities."""
        self._unsaid = []
        events = self._close()
        head = {"id": f"fc_{uuid4().hex}", "type": "function_call", "call_id": call.id}
        function = self._functions[call.name]
        head |= {"namespace": function.namespace} if function.namespace else {}
        name = function.tool.name
        item = {**head, "name": name, "arguments": call.arguments, "status": ENDED}
        begun = {**item, "arguments": "", "status": BEGUN}
        arguments, of_item = call.arguments, {"item_id": item["id"]}
        events += [
            self._event("output_item.added", item=begun),
            self._event("function_call_arguments.delta", **of_item, delta=arguments),
            self._event("function_call_arguments.done", **of_item, name=name, arguments=arguments),
            self._event("output_item.done", item=item),
        ]
        self.finished.append(item)
        return events

    def _event(self, what: str, **content: Any) -> Object:
        """An event about the item that comes after the finished ones."""
        place: Object = {"output_index": len(self.finished)}
        if self._message is not None and "item" not in content:
            place |= {"item_id": self._message.id, "content_index": 0}
        return {"type": f"response.{what}", **place, **content}
