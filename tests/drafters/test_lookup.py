"""Drafters that can be asked after guesses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters import Anpd, Llma, PromptLookup
from paceline.drafters.lookup import LookupDrafter
from paceline.records import Path, Round, TextStart
from paceline.tree import EMPTY

Maker = Callable[[], LookupDrafter]
MAKERS: list[Maker] = [Anpd, lambda: Llma(tie="first"), PromptLookup]
texts = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def started(make: Maker, text: list[int]) -> LookupDrafter:
    drafter = make()
    drafter.start(TextStart(text, [[0, 1, 2, 0, 2, 1, 1]]))
    return drafter


@pytest.mark.parametrize("make", MAKERS)
@given(text=texts, path=st.lists(st.integers(0, 3), max_size=5), budget=st.integers(0, 12))
def test_asking_after_guesses_changes_nothing(
    make: Maker, text: list[int], path: list[int], budget: int
) -> None:
    asked, left_alone = started(make, text), started(make, text)
    assert len(asked.propose_after(path, budget)) <= budget
    assert asked.propose(budget) == asked.propose_after((), budget) == left_alone.propose(budget)


@pytest.mark.parametrize("make", MAKERS)
def test_a_guess_is_continued_as_the_text_would_be(make: Maker) -> None:
    """After 11 stood 12 13 14 15; the path leads there from a token that is new."""
    drafter = started(make, [16, 11, 12, 13, 14, 15, 18, 19])
    drafter.observe(Round(0, EMPTY, torch.zeros(1, 10), Path((), (17,))))
    assert drafter.propose(4) == EMPTY
    assert drafter.propose_after([11], 4).tokens[:3] == (12, 13, 14)
    assert drafter.propose_after([11, 12], 4).tokens[:3] == (13, 14, 15)
    assert drafter.propose_after([11, 21], 4) == EMPTY


@given(text=texts, path=st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_llma_goes_on_exactly_as_if_the_guesses_had_been_said(
    text: list[int], path: list[int]
) -> None:
    """Its output is no text to copy from, so nothing but the match changes."""
    asked, told = started(MAKERS[1], text), started(MAKERS[1], text)
    told.observe(Round(0, EMPTY, torch.zeros(1, 3), Path((), (path[0],))))
    for token in path[1:]:
        told.observe(Round(0, EMPTY, torch.zeros(1, 3), Path((), (token,))))
    assert asked.propose_after(path, 9) == told.propose(9)
