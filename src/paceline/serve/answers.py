"""Parts of OpenAI's objects: usage, metrics, and log-probabilities with their tokens as text."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from paceline.records import TokenLogprob
from paceline.serve.ticket import Ticket
from paceline.stats import SourceStats, Stats
from paceline.stream import Completion
from paceline.text import Tokenizer, hidden_ids

_REFERENCE_SOURCES = ("anpd", "llma", "suffix")
"""Drafters that search references. They also search the text itself, and do not tell which."""

_HALF = "\N{REPLACEMENT CHARACTER}"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_KEPT = 1 << 18
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def finish_reason(completion: Completion) -> str:
    """OpenAI's name for why a text ended."""
    return "length" if completion.finish_reason == "length" else "stop"


def usage_of(
    completions: Sequence[Completion], texts_of_a_prompt: int, predicted: bool
) -> dict[str, Any]:
    """Token counts over all texts of a request; a prompt counts once, however many answers it has.

    predicted: whether the request gave texts that the answer may resemble.
    """
    firsts = completions[::texts_of_a_prompt]
    prompts = sum(each.prompt_tokens for each in firsts)
    written = sum(len(each.tokens) for each in completions)
    accepted, rejected = _predicted(completions) if predicted else (0, 0)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": written,
        "total_tokens": prompts + written,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in firsts)},
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


def metrics_of(stats: Stats, ticket: Ticket) -> dict[str, Any]:
    """One text's metrics, as in vLLM, but per token after the first round, which may bring several.
    Drafts are trees: `num_draft_tokens` counts their nodes."""
    milliseconds = 1000 * (ticket.ended - ticket.first_token)
    later = max(0, stats.tokens - ticket.at_first)
    return {
        "time_to_first_token_ms": 1000 * (ticket.first_token - ticket.arrived),
        "generation_time_ms": milliseconds,
        "queue_time_ms": 1000 * (ticket.begun - ticket.arrived),
        "mean_itl_ms": milliseconds / later if later else 0.0,
        "tokens_per_second": 1000 * later / milliseconds if milliseconds else 0.0,
        "speculative_decoding": {
            "mean_acceptance_length": stats.mean_acceptance_length,
            "draft_acceptance_rate": stats.draft_acceptance_rate,
            "acceptance_histogram": {
                str(gained): rounds for gained, rounds in sorted(stats.acceptance_histogram.items())
            },
            "num_spec_steps": stats.triggers,
            "num_accepted_draft_tokens": stats.accepted,
            "num_draft_tokens": stats.drafted,
            "num_spec_tokens": max(stats.depth_histogram, default=0),
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
        "text_offset": places.of(tokenizer, found),
    }


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_text(tokenizer, token),
        "logprob": logprob,
        "bytes": list(token_bytes(tokenizer, token)),
    }


class Places:
    """Where the tokens of a text begin, in characters, by their bytes: a token that ends inside a
    character leaves the next one where that character begins."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def of(self, tokenizer: Tokenizer, found: Sequence[TokenLogprob]) -> list[int]:
        """The places of the next tokens."""
        hidden = hidden_ids(tokenizer)  # they take no place in the text
        places = list[int]()
        for each in found:
            places.append(self._length)
            said = b"" if each.token in hidden else token_bytes(tokenizer, each.token)
            self._length += len(self._decoder.decode(said))
        return places


def token_text(tokenizer: Any, token: int) -> str:
    """A token as OpenAI writes it: its text, or "bytes:" and its bytes if these are no text."""
    found = token_bytes(tokenizer, token)
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


@lru_cache(_KEPT)
def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The bytes of a token. Kept, as an answer may name the same tokens thousands of times."""
    piece = getattr(tokenizer, "convert_ids_to_tokens", lambda _: None)(token) or ""
    text: str = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    if text == piece:  # as added tokens often are, whatever is in them
        return text.encode("utf-8")
    if byte := _BYTE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    if _SPACE in piece:  # decoding drops it at the beginning of a text
        return str(piece).replace(_SPACE, " ").encode("utf-8")
    if _HALF in text and all(letter in _byte_letters() for letter in piece):
        return bytes(_byte_letters()[letter] for letter in piece)
    return text.encode("utf-8")


@cache
def _byte_letters() -> dict[str, int]:
    """The byte for each letter of byte-level vocabularies: a printable byte is its own letter, and
    the others take the letters from 256 on in order (GPT-2's table)."""
    return {letter: byte for byte, letter in bytes_to_unicode().items()}
