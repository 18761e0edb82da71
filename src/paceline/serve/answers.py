"""Convert completions to objects of OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.completion import Completion
from paceline.records import TokenLogprob
from paceline.serve.ticket import Times
from paceline.serve.token_text import Places, token_bytes, token_text
from paceline.stats import SourceStats, Stats
from paceline.text import Tokenizer, hidden_ids

__all__ = [
    "chat_logprobs",
    "completion_logprobs",
    "finish_reason",
    "in_text",
    "metrics_of",
    "usage_of",
]

_REFERENCE_SOURCES = ("anpd", "llma", "suffix")
"""Drafters that search references. They also search the text itself, and do not tell which."""


def finish_reason(completion: Completion) -> str:
    """OpenAI's name for why a text ended."""
    return "length" if completion.finish_reason == "length" else "stop"


def usage_of(
    completions: Sequence[Completion], texts_of_a_prompt: int, predicted: bool
) -> dict[str, Any]:
    """Token counts over all texts of a request; a prompt counts once, however many answers it has.

    predicted: whether the request gave texts that the answer may resemble.
    """
    prompts = [each.prompt_tokens for each in completions[::texts_of_a_prompt]]
    cached = [each.cached_tokens for each in completions[::texts_of_a_prompt]]
    written = sum(len(each.tokens) for each in completions)
    accepted, rejected = _predicted(completions) if predicted else (0, 0)
    return {
        "prompt_tokens": sum(prompts),
        "completion_tokens": written,
        "total_tokens": sum(prompts) + written,
        "prompt_tokens_details": {"cached_tokens": sum(cached)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        },
    }


def _predicted(completions: Sequence[Completion]) -> tuple[int, int]:
    """Accepted and rejected guesses: of drafters that search references if the method tells who
    guessed what, else of all."""
    accepted = rejected = 0
    for completion in completions:
        stats = completion.stats
        known = [stats.sources[name] for name in _REFERENCE_SOURCES if name in stats.sources]
        if known:
            # Sources may guess alike; counting only the best one avoids double counting.
            best = max(known, key=lambda source: source.accepted)
            accepted += best.accepted
            rejected += best.scored - best.accepted
        else:
            forced = stats.sources.get("grammar", SourceStats())
            accepted += stats.accepted - forced.accepted
            rejected += stats.drafted - stats.accepted - (forced.scored - forced.accepted)
    return accepted, rejected


def metrics_of(stats: Stats, times: Times) -> dict[str, Any]:
    """One text's metrics, as in vLLM. Drafts are trees: `num_draft_tokens` counts their nodes."""
    deepest = max(stats.depth_histogram, default=0)
    milliseconds = 1000 * (times.ended - times.first_token)
    return {
        "time_to_first_token_ms": 1000 * (times.first_token - times.arrived),
        "generation_time_ms": milliseconds,
        "queue_time_ms": 1000 * (times.begun - times.arrived),
        "mean_itl_ms": milliseconds / max(1, stats.tokens - 1),
        "tokens_per_second": 1000 * (stats.tokens - 1) / milliseconds if milliseconds else 0.0,
        "speculative_decoding": {
            "mean_acceptance_length": stats.mean_acceptance_length,
            "draft_acceptance_rate": stats.draft_acceptance_rate,
            "acceptance_histogram": {
                str(gained): rounds for gained, rounds in sorted(stats.acceptance_histogram.items())
            },
            "num_spec_steps": stats.triggers,
            "num_accepted_draft_tokens": stats.accepted,
            "num_draft_tokens": stats.drafted,
            "num_spec_tokens": deepest,
        },
    }


def chat_logprobs(tokenizer: Tokenizer, found: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities in the format of chats."""
    content = [
        {
            **_token(tokenizer, each.token, each.logprob),
            "top_logprobs": [_token(tokenizer, token, value) for token, value in each.top],
        }
        for each in found
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, found: Sequence[TokenLogprob], places: Places
) -> dict[str, Any]:
    """Log-probabilities in the format of completions. places: of the text's tokens so far."""
    hidden = hidden_ids(tokenizer)  # they take no place in the text
    said = [b"" if each.token in hidden else token_bytes(tokenizer, each.token) for each in found]
    return {
        "tokens": [token_text(tokenizer, each.token) for each in found],
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [
            {  # as at OpenAI, the token itself is among them
                token_text(tokenizer, token): value
                for token, value in (*each.top, (each.token, each.logprob))
            }
            for each in found
        ],
        "text_offset": [places.next(token) for token in said],
    }


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_text(tokenizer, token),
        "logprob": logprob,
        "bytes": list(token_bytes(tokenizer, token)),
    }


def in_text(completion: Completion) -> int:
    """Number of tokens, without an end token, which is no part of the text."""
    return len(completion.tokens) - (completion.finish_reason == "eos")
