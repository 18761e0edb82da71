"""Documents that are near to a text, searched apart from all others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
import torch

from paceline.datastore import BORDER, SuffixArray
from paceline.datastore import suffix_array as module
from paceline.drafters.known_texts import KnownTexts
from paceline.drafters.near_texts import NearTexts
from paceline.drafters.rest import Rest
from paceline.drafters.suffix import Answers, Suffix
from paceline.records import Path, Round, TextStart
from paceline.tree import EMPTY

Maker = Callable[[int], Rest | Suffix]

# After 7 stands 8 most often, and 9 in the one document that begins as the text does.
BEGINNING = [20, 21, 22, 23, 24, 25]
NEAR = [*BEGINNING, 30, 31, 7, 9, 32]
OTHERS = [[40, 7, 8, 50], [41, 7, 8, 51], [42, 7, 43], [44, 7, 45]]


@pytest.fixture(params=["with the library", "without it"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without it":
        monkeypatch.setattr(module, "unavailable", lambda: "a test")


def array_of(*documents: list[int]) -> SuffixArray:
    tokens = list(chain.from_iterable([BORDER, *each] for each in documents))
    return SuffixArray(np.array(tokens, dtype=np.int32))


def rest(near: int) -> Rest:
    return Rest(n=1, near=near, texts=KnownTexts([array_of(*OTHERS, NEAR)]))


def suffix(near: int) -> Suffix:
    answers = Answers(1 << 12)
    for each in [*OTHERS, NEAR]:
        answers.add(each)
    return Suffix(near=near, lengths=1, answers=answers)


def said(drafter: Rest | Suffix, *tokens: int) -> None:
    for token in tokens:
        drafter.propose(8)
        drafter.observe(Round(0, EMPTY, torch.zeros(1, 1), Path((), (token,))))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("make", [rest, suffix])
@pytest.mark.parametrize(("near", "beginning", "first"), [(1, 6, 9), (0, 6, 8), (1, 5, 8)])
def test_a_short_match_in_a_near_document_counts_more(
    make: Maker, near: int, beginning: int, first: int
) -> None:
    drafter = make(near)
    drafter.start(TextStart([60], []))
    said(drafter, *BEGINNING[:beginning], 61, 7)
    assert drafter.propose(1).tokens == (first,)


@pytest.mark.parametrize("make", [rest, suffix])
def test_the_next_text_has_none(make: Maker) -> None:
    drafter = make(1)
    drafter.start(TextStart([60], []))
    said(drafter, *BEGINNING, 61)
    drafter.resume(TextStart([60, *BEGINNING, 62, 7], []))
    assert drafter.propose(1).tokens == (9,), "it is still the same text"
    drafter.start(TextStart([60, 7], []))
    assert drafter.propose(1).tokens == (8,)


def test_what_many_documents_say_makes_none_near() -> None:
    many = array_of(*([*BEGINNING, 7, 8] for _ in range(33)))
    found = many.look_up(BEGINNING, 8)
    assert found.places == 33
    near = NearTexts(16, 10)
    near.take(found, many)
    assert near.look_up([7], 8) == (EMPTY, 0.0)


@pytest.mark.usefixtures("library")
def test_a_document_ends_at_its_borders() -> None:
    array = array_of([1, 2, 3], [4, 2, 5, 6], [7])

    def around(tail: list[int], size: int) -> list[tuple[int, list[int]]]:
        found = array.look_up(tail, 8)
        return [(begin, tokens.tolist()) for begin, tokens in array.around(found, size, size)]

    assert around([4, 2], 9) == [(5, [4, 2, 5, 6])]
    assert around([4, 2], 1) == [(6, [2, 5])]
    assert sorted(around([2], 9)) == [(1, [1, 2, 3]), (5, [4, 2, 5, 6])]


def test_documents_are_taken_once_and_not_beyond_the_limit() -> None:
    array = array_of(NEAR, [*BEGINNING, 33], [*BEGINNING, 34])
    near = NearTexts(2, 10)
    for _ in range(3):
        near.take(array.look_up(BEGINNING, 8), array)
    assert sorted(near.look_up(BEGINNING, 8)[0].tokens[:2]) in ([30, 33], [30, 34], [33, 34])
    assert len(near.look_up(BEGINNING, 64)[0].tokens) <= 6
