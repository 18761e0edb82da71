"""Prompt lookup against scanning the text anew, and against transformers' own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.drafters.test_resume import tell
from tests.helpers import unweighted
from tests.interrupted import everywhere
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from paceline.datastore import GrowingSuffixArray, suffix_array
from paceline.drafters import lookup
from paceline.drafters.llma import Llma
from paceline.drafters.pld import PromptLookup
from paceline.drafters.suffix import Suffix
from paceline.records import Path, Round, TextStart
from paceline.tree import EMPTY, Tree

texts = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), min_size=1, max_size=40)
)


def rescan(text: Sequence[int], n: int, k: int) -> list[int]:
    """Longest run first; of its places the leftmost that something follows, itself excluded."""
    for run in range(min(n, len(text)), 0, -1):
        for after in range(run, len(text)):
            if list(text[after - run : after]) == list(text[-run:]):
                return list(text[after : after + k])
    return []


def started(context: Sequence[int], n: int = 3, k: int = 10) -> PromptLookup:
    drafter = PromptLookup(n=n, k=k)
    drafter.start(TextStart(context))
    return drafter


@given(texts, st.integers(1, 5), st.integers(1, 12), st.integers(0, 20))
def test_a_draft_is_what_followed_the_leftmost_place_of_the_longest_run(
    text: list[int], n: int, k: int, budget: int
) -> None:
    expected = rescan(text, n, min(k, budget))
    assert unweighted(started(text, n, k).propose(budget)) == Tree.chain(expected)


@given(texts, st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=8))
def test_committed_tokens_are_found_as_if_they_had_stood_in_the_prompt(
    prompt: list[int], rounds: list[list[int]]
) -> None:
    drafter = started(prompt)
    text = list(prompt)
    for tokens in rounds:
        path = Path(tuple(range(len(tokens) - 1)), tuple(tokens))
        drafter.observe(Round(0, Tree.chain(tokens[:-1]), torch.empty(0), path))
        text += tokens
        assert unweighted(drafter.propose(64)) == Tree.chain(rescan(text, 3, 10))


@given(texts)
def test_it_drafts_what_transformers_drafts(text: list[int]) -> None:
    """The rules coincide but for two things, which are switched off here: transformers cuts a
    candidate before an EOS id (paceline ends the text in the walk, so an EOS may be guessed), and
    near `max_length` (paceline clips every tree to the tokens that are left)."""
    theirs = PromptLookupCandidateGenerator(
        eos_token_id=None, num_output_tokens=10, max_matching_ngram_size=3, max_length=10_000
    )
    candidate, _ = theirs.get_candidates(torch.tensor([text]))
    assert unweighted(started(text).propose(64)) == Tree.chain(candidate[0, len(text) :].tolist())


@given(texts, texts)
def test_another_text_begins_anew(first: list[int], second: list[int]) -> None:
    drafter = started(first)
    drafter.start(TextStart(second))
    assert unweighted(drafter.propose(64)) == Tree.chain(rescan(second, 3, 10))


def test_references_are_not_looked_at() -> None:
    drafter = PromptLookup()
    drafter.start(TextStart([7], [[7, 8, 9]]))
    assert drafter.propose(64) == EMPTY


@pytest.mark.parametrize("context", [[], [5], [5, 6, 7]])
def test_a_text_that_does_not_repeat_itself_is_not_guessed(context: list[int]) -> None:
    assert started(context).propose(64) == EMPTY


def test_text_that_repeats_itself_takes_no_longer_than_other_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its many places only the leftmost are compared beyond what the array compares."""
    tried: list[int] = []

    def longest(array: Any, places: Any, matched: int, tail: Any) -> Any:
        tried.append(len(places))
        return places, matched

    drafter = PromptLookup(n=64)
    drafter.start(TextStart([1, 2] * 5000))
    monkeypatch.setattr(GrowingSuffixArray, "longest", longest)
    assert drafter.propose(4).tokens == (1, 2, 1, 2) and tried == [1024]


@pytest.mark.parametrize("make", [PromptLookup, Suffix, Llma])
def test_guesses_are_right_again_after_an_interruption_anywhere(make: type[Any]) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    for interrupt in everywhere(lookup, suffix_array):
        drafter = make()
        drafter.start(TextStart(text[:5]))
        interrupt(lambda drafter=drafter: drafter.start(TextStart([*text, *range(8, 2000)])))
        drafter.start(TextStart(text))
        tell(drafter, [9, 1, 2, 3])
        assert drafter.propose(1).tokens in ((4,), (9,))
