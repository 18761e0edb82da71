"""Answers to `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.completion import Completion
from paceline.records import TokenLogprob
from paceline.serve.answering import Answer
from paceline.serve.answers import completion_logprobs, finish_reason, in_text
from paceline.serve.schemas import CompletionRequest
from paceline.serve.ticket import Ticket
from paceline.serve.token_text import Places
from paceline.text import Tokenizer

__all__ = ["CompletionAnswer"]


class CompletionAnswer(Answer):
    """Continuations of prompts. echoes: for each text, the prompt to repeat, or ""."""

    kind, part = "text_completion", ""

    def __init__(
        self,
        request: CompletionRequest,
        ticket: Ticket,
        tokenizer: Tokenizer,
        fingerprint: str,
        echoes: Sequence[str],
    ) -> None:
        super().__init__(request, ticket, tokenizer, fingerprint)
        self._echoes = echoes
        self._places = [Places() for _ in echoes]

    def begin(self) -> list[dict[str, Any]]:
        """The prompts to repeat."""
        return [
            self._piece([self._part(index, echo)])
            for index, echo in enumerate(self._echoes)
            if echo
        ]

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        said = completion.logprobs[: in_text(completion)]
        return {
            "index": index,
            "text": self._echoes[index] + completion.text,
            "logprobs": self._logprobs(index, said) if self._with_logprobs else None,
            "finish_reason": finish_reason(completion),
        }

    def _text_pieces(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob]
    ) -> list[dict[str, Any]]:
        piece = self._part(index, text)
        if self._with_logprobs:
            piece["logprobs"] = self._logprobs(index, logprobs)
        return [piece]

    def _last_pieces(self, index: int, completion: Completion) -> list[dict[str, Any]]:
        return [{**self._part(index, ""), "finish_reason": finish_reason(completion)}]

    def _logprobs(self, index: int, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        return completion_logprobs(self._tokenizer, found, self._places[index])

    def _part(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
