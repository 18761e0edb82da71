"""What chat and completion answers have in common: headings, usage, and pieces of streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import time
from typing import Any
from uuid import uuid4

from paceline.completion import Completion
from paceline.records import TokenLogprob
from paceline.serve.answers import in_text, metrics_of, usage_of
from paceline.serve.schemas import TextRequest
from paceline.serve.ticket import News, Ticket
from paceline.text import Chunk, Tokenizer

__all__ = ["Answer"]


class Answer(ABC):
    """Turns the engine's news of one request into objects of the protocol.

    kind: of the objects. fingerprint: of model and server.
    """

    kind: str
    part: str
    """Suffix of the kind for pieces of a stream."""

    def __init__(
        self, request: TextRequest, ticket: Ticket, tokenizer: Tokenizer, fingerprint: str
    ) -> None:
        prefix = "chatcmpl" if self.kind.startswith("chat") else "cmpl"
        self._heading: dict[str, Any] = {
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

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [self._choice(place, each) for place, each in enumerate(completions)]
        return {**self._heading, "choices": choices, **self._end(completions)}

    def begin(self) -> list[dict[str, Any]]:
        """The first pieces of a stream, before any text."""
        return []

    def pieces(self, news: News) -> list[dict[str, Any]]:
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
        return [self._piece([choice]) for choice in choices]

    def end(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        """The last piece of a stream, with the usage, if requested."""
        end = self._end(completions)
        if not (self._with_usage or "metrics" in end):
            return []
        return [{**self._piece([]), **end}]

    def _logprobs_of(self, news: News) -> Sequence[TokenLogprob]:
        """Those of a round's news, so that all pieces together have those of the whole answer:
        the last tokens may have no text, and text that ends with an end token does not have it."""
        found = tuple(each for chunk in news.chunks for each in chunk.logprobs)
        if news.completion is not None:
            known = slice(self._scored[news.index], in_text(news.completion))
            found = news.completion.logprobs[known]
        self._scored[news.index] += len(found)
        return found

    def _piece(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        piece = {**self._heading, "object": f"{self.kind}{self.part}", "choices": choices}
        return {**piece, "usage": None} if self._with_usage else piece

    def _end(self, completions: Sequence[Completion]) -> dict[str, Any]:
        request, ticket = self._request, self._ticket
        extension = request.paceline
        predicted = request.prediction is not None or bool(extension and extension.references)
        end: dict[str, Any] = {"usage": usage_of(completions, request.n or 1, predicted)}
        if extension and extension.metrics and len(completions) == 1:
            end["metrics"] = metrics_of(completions[0].stats, ticket.times)
        return end

    @abstractmethod
    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """One complete text."""

    @abstractmethod
    def _text_pieces(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob]
    ) -> list[dict[str, Any]]:
        """More of one text."""

    @abstractmethod
    def _last_pieces(self, index: int, completion: Completion) -> list[dict[str, Any]]:
        """The end of one text."""
