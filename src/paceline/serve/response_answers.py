"""From the engine's news of a request to the objects of OpenAI's Responses API, whole or as a stream of
events."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from time import time
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from paceline.serve.answering import Object, end_of
from paceline.serve.errors import ApiError
from paceline.serve.response_items import BEGUN, CUT, ENDED, Items
from paceline.serve.response_tools import OtherTool
from paceline.serve.responses import ResponsesRequest
from paceline.serve.ticket import News, Ticket
from paceline.stream import Completion
from paceline.text import Tokenizer


class ResponseAnswer:
    """The answer to a request; see `Answer`, which has the same interface."""

    end_mark = ""

    def __init__(
        self, request: ResponsesRequest, ticket: Ticket, tokenizer: Tokenizer, fingerprint: str
    ) -> None:
        self._request, self._ticket = request, ticket
        self._items = Items(request, ticket.orders[0], tokenizer)
        self._heading: Object = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time()),
            "model": request.model,
            "system_fingerprint": fingerprint,
            **_repeated(request),
        }
        self._numbers = count()

    def whole(self, completions: Sequence[Completion]) -> Object:
        """The answer in one piece."""
        self._items.whole(completions[0])
        return self._ended(completions)

    def begin(self) -> list[Object]:
        """The first events of a stream, before any new text."""
        begun = self._response(BEGUN)
        return [self._event(f"response.{what}", response=begun) for what in ("created", BEGUN)]

    def pieces(self, news: News) -> list[Object]:
        """One round's news as events."""
        return [self._event(**event) for event in self._items.pieces(news)]

    def end(self, completions: Sequence[Completion]) -> list[Object]:
        """The last event of a stream, with the whole answer."""
        ended = self._ended(completions)
        return [self._event(f"response.{ended['status']}", response=ended)]

    def failed(self, error: ApiError) -> Object:
        """The last event of a stream that fails."""
        reason = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=self._response("failed", error=reason))

    def _event(self, type: str, **content: Any) -> Object:
        return {"type": type, "sequence_number": next(self._numbers), **content}

    def _response(self, status: str, **changes: Any) -> Object:
        return {**self._heading, "status": status, "output": self._items.finished, **changes}

    def _ended(self, completions: Sequence[Completion]) -> Object:
        end = end_of(self._request, self._ticket, completions)
        end["usage"] = _usage(end["usage"])
        if completions[0].finish_reason != "length":
            return self._response(ENDED, **end)
        return self._response(CUT, incomplete_details={"reason": "max_output_tokens"}, **end)


def _repeated(request: ResponsesRequest) -> Object:
    """What an answer repeats of its request, and what it has not got yet."""
    form = request.text.format if request.text else None
    choice = request.tool_choice or "auto"
    return {
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.limit,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": _dumped(form) if form else {"type": "text"}},
        "tool_choice": choice if isinstance(choice, str) else _dumped(choice),
        "tools": [_dumped(each) for each in request.tools or [] if not isinstance(each, OtherTool)],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _dumped(shape: BaseModel) -> Object:
    return shape.model_dump(by_alias=True, exclude_none=True)


def _usage(of_chat: Object) -> Object:
    """A chat's token counts under their names here."""
    return {
        "input_tokens": of_chat["prompt_tokens"],
        "input_tokens_details": {**of_chat["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": of_chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0, **of_chat["completion_tokens_details"]},
        "total_tokens": of_chat["total_tokens"],
    }
