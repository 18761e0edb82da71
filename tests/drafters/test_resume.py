"""Texts that are taken back and go on otherwise, as a draft model's do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import torch
from tests.ngram_sizes import sizes

from paceline.drafters import Anpd, Llma, Plain, PromptLookup
from paceline.protocols import Drafter
from paceline.records import Path, Round, TextStart
from paceline.tree import EMPTY

D = TypeVar("D", bound=Drafter)


def said(*tokens: int) -> Round:
    """A round that committed these."""
    return Round(0, EMPTY, torch.zeros(1, 4), Path((), (tokens[0],)))


def tell(drafter: Drafter, tokens: list[int]) -> None:
    for token in tokens:
        drafter.observe(said(token))


def wandering(seed: int, prompt: int) -> Iterator[tuple[list[int], list[int] | None]]:
    """A text over few tokens, again and again: (tokens that come, None), or (the whole text, how it
    goes on) after some of its last tokens were taken back."""
    rng = random.Random(seed)
    text = [rng.randrange(4) for _ in range(prompt)]
    yield list(text), None
    for _ in range(60):
        if rng.random() < 0.5:
            more = [rng.randrange(4) for _ in range(rng.randint(1, 6))]
            text += more
            yield more, None
        else:
            kept = max(prompt, len(text) - rng.randint(0, 5))
            text = text[:kept] + [rng.randrange(4) for _ in range(rng.randint(0, 3))]
            yield [], list(text)


def beside_fresh(make: Callable[[], D], seed: int) -> Iterator[tuple[D, D]]:
    """A drafter after each turn of a text, and one that begins with the text as it is then."""
    drafter, text = make(), list[int]()
    for place, (tokens, again) in enumerate(wandering(seed, 7)):
        if place == 0:
            drafter.start(TextStart(tokens))
        elif again is None:
            tell(drafter, tokens)
        else:
            drafter.resume(TextStart(again))
        text = text + tokens if again is None else again
        fresh = make()
        fresh.start(TextStart(text))
        yield drafter, fresh


@pytest.mark.parametrize("seed", range(10))
def test_prompt_lookup_is_as_if_it_had_never_heard_what_was_taken_back(seed: int) -> None:
    for drafter, fresh in beside_fresh(PromptLookup, seed):
        assert drafter.propose(9) == fresh.propose(9)


@pytest.mark.parametrize("seed", range(10))
def test_llma_matches_as_if_the_output_had_always_been_this_one(seed: int) -> None:
    references = [[1, 2, 3, 0, 1, 2, 2], [0, 0, 1, 3, 3, 2, 1, 0]]
    drafter, prompt, output = Llma(tie="first"), [], []
    for place, (tokens, again) in enumerate(wandering(seed, 7)):
        if place == 0:
            prompt = tokens
            drafter.start(TextStart(prompt, references))
        elif again is None:
            tell(drafter, tokens)
            output = output + tokens
        else:
            drafter.resume(TextStart(again, references))
            output = again[len(prompt) :]
        fresh = Llma(tie="first")
        fresh.start(TextStart(prompt, references))
        tell(fresh, output)
        assert drafter.propose(9) == fresh.propose(9)


def test_llma_begins_anew_where_the_prompt_is_another_one() -> None:
    drafter = Llma()
    drafter.start(TextStart([5, 6, 7], [[1, 2, 3, 4]]))
    tell(drafter, [1, 2])
    assert drafter.propose(2).tokens == (3, 4)
    drafter.resume(TextStart([8, 9], [[1, 2, 3, 4]]))
    assert drafter.propose(2) == EMPTY
    tell(drafter, [1])
    assert drafter.propose(2).tokens == (2, 3)


def test_anpd_keeps_what_was_taken_back() -> None:
    drafter = Anpd(branches=1)
    drafter.start(TextStart([1, 2]))
    tell(drafter, [3, 4, 5])
    drafter.resume(TextStart([1, 2, 3, 9, 3]))
    assert drafter.propose(2).tokens == (9, 3)  # the longer run knows "9" after "2 3" alone
    drafter.resume(TextStart([1, 2, 3, 4]))
    assert drafter.propose(1).tokens == (5,)  # said once, though it was taken back


@pytest.mark.parametrize("persist", [False, True])
def test_anpd_counts_nothing_twice(persist: bool) -> None:
    straight, taken_back = Anpd(persist=persist), Anpd(persist=persist)
    straight.start(TextStart([1, 2, 3, 1, 2]))
    tell(straight, [3, 1])
    taken_back.start(TextStart([1, 2, 3, 1, 2]))
    tell(taken_back, [3])
    taken_back.resume(TextStart([1, 2, 3, 1, 2, 3, 1]))
    assert sizes(straight._ngrams) == sizes(taken_back._ngrams)
    for tail in ((1,), (2,), (3,), (2, 3), (3, 1)):
        assert straight.propose_after(tail, 9) == taken_back.propose_after(tail, 9)


def test_a_drafter_that_cannot_resume_starts_anew() -> None:
    starts = []

    class Starting(Plain):
        def start(self, text: TextStart) -> None:
            starts.append(text)

    text = TextStart([1, 2], [[3]])
    Starting().resume(text)
    assert starts == [text]
