"""The items of an answer of the Responses API, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tiny import byte_tokenizer

from paceline.records import TokenLogprob
from paceline.serve.response_items import Items
from paceline.serve.responses import ResponsesRequest
from paceline.serve.ticket import News
from paceline.serve.tools import CLOSE, OPEN
from paceline.stats import Stats
from paceline.stream import Chunk, Completion

WEATHER = {"type": "function", "name": "weather"}
CALLED = '{"name": "weather", "arguments": {"city": "Oslo"}}'


def new_items(**fields: Any) -> Items:
    """Of an answer with log-probabilities."""
    request = ResponsesRequest.model_validate({"model": "toy", "input": "a", **fields})
    order: Any = SimpleNamespace(options=SimpleNamespace(logprobs=0))
    return Items(request, order, byte_tokenizer())


@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_without_calls_no_text_is_held_back(fields: dict[str, Any]) -> None:
    (*_, delta) = new_items(**fields).pieces(News(0, [Chunk(OPEN, False)]))
    assert delta["delta"] == OPEN


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], [("", [])]),
        (["a", "b"], [("ab", [0, 1])]),
        (["a", ""], [("a", [0, 1])]),  # half a character
        (["a", f"\n{OPEN}", CALLED, CLOSE, "b"], [("a", [0]), CALLED, ("b", [4])]),
        ([OPEN, CALLED, CLOSE], [CALLED]),
    ],
)
def test_tokens_of_calls_are_in_no_message(pieces: Sequence[str], expected: list[Any]) -> None:
    items = new_items(tools=[WEATHER])
    for place, piece in enumerate(pieces):
        items.pieces(News(0, [Chunk(piece, False, logprobs=(TokenLogprob(10, place),))]))
    items.pieces(News(0, completion=Completion("", [], "eos", Stats(), 1)))
    assert found_in(items) == expected


@pytest.mark.parametrize("way", ["whole", "one round", "rounds of five"])
def test_messages_have_the_scores_of_their_tokens_however_these_come(way: str) -> None:
    text = f"på{OPEN}{CALLED}{CLOSE}så {OPEN} ok"
    items, tokenizer = new_items(tools=[WEATHER]), byte_tokenizer()
    tokens = tokenizer.encode(text)
    scores = [TokenLogprob(token, place) for place, token in enumerate(tokens)]
    rounds = [scores[at : at + 5] for at in range(0, len(scores), 5)]
    if way == "rounds of five":
        for some in rounds:
            said = tokenizer.decode([each.token for each in some])
            items.pieces(News(0, [Chunk(said, False, logprobs=tuple(some))]))
    elif way == "one round":
        items.pieces(News(0, [Chunk(text, False, logprobs=tuple(scores))]))
    completion = Completion(text, tokens, "length", Stats(), 1, logprobs=tuple(scores))
    if way == "whole":
        items.whole(completion)
    else:
        items.pieces(News(0, completion=completion))
    first, last = len("på".encode()), len(f"så {OPEN} ok".encode())
    assert found_in(items) == [
        ("på", [*range(first)]),
        CALLED,
        (f"så {OPEN} ok", [*range(len(tokens) - last, len(tokens))]),
    ]


def found_in(items: Items) -> list[Any]:
    """Messages with their log-probabilities, and calls."""
    found = list[Any]()
    for item in items.finished:
        if item["type"] == "message":
            (part,) = item["content"]
            found.append((part["text"], [each["logprob"] for each in part["logprobs"]]))
        else:
            assert item["name"] == "weather"
            found.append(f'{{"name": "weather", "arguments": {item["arguments"]}}}')
    return found
