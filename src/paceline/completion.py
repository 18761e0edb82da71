"""The result of a generation."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import StoreError
from paceline.records import FinishReason, TokenLogprob
from paceline.stats import Stats


@dataclass(frozen=True)
class Completion:
    """What was generated.

    text: without special tokens, and without the token or stop string that ended it.
    tokens: all of them, including the one that ended the text.
    prompt_tokens: how many the prompt has; `cached_tokens` of these were already in the cache.
    lossless: whether the tokens are plain decoding's; True without typical acceptance.
    logprobs: of each of `tokens`, if requested.
    error: why the text was aborted, with the finish reason "error" or, if that was an interruption,
    "interrupted".
    unkept: what went wrong in the datastore or the store of answers; usually (`StoreError.kept`) the
    answer is not kept there.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    stats: Stats
    prompt_tokens: int
    cached_tokens: int = 0
    lossless: bool = True
    error: BaseException | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    unkept: StoreError | None = None
