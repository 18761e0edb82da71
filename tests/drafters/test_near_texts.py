"""Documents that are near to a text, searched apart from all others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
import torch

from paceline.datastore import BORDER, SuffixArray
from paceline.datastore import suffix_array as module
from paceline.drafters.known_texts import KnownTexts, NearTexts
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
        places = array.places(array.look_up(tail, 8))
        found = [array.around(place, size, size) for place in places]
        return [(begin, tokens.tolist()) for begin, tokens in found]

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


def unlike(count: int, seed: int) -> list[int]:
    """Tokens of which no six consecutive ones are likely to occur twice."""
    return np.random.default_rng(seed).integers(0, 5000, count).tolist()


def quote(near: NearTexts, array: SuffixArray, text: list[int]) -> None:
    """The text quotes a document, token by token."""
    for end in range(8, len(text)):
        near.take(array.look_up(text[:end], 1), array)


@pytest.mark.usefixtures("library")
def test_a_stretch_is_taken_once_as_the_text_goes_on() -> None:
    """Of a document that is longer than what is taken of it."""
    document = unlike(6000, 0)
    near = NearTexts(16, 32)
    quote(near, array_of(document, unlike(300, 1)), document[2500:2600])
    assert len(near._array) <= 1 + 6000
    once = near.look_up(document[2590:2600], 4)
    quote(near, array_of(document), document[2500:2510])  # the same, from elsewhere
    assert len(near._array) > 6001
    assert near.look_up(document[2590:2600], 4)[0].tokens == once[0].tokens


def test_one_document_that_does_not_fit_leaves_room_for_smaller_ones() -> None:
    shared = unlike(8, 0)
    first, second = unlike(6000, 1), unlike(6000, 2)
    large, small = [*unlike(5000, 3), *shared, *unlike(4000, 4)], [5000, *shared, 7, 9]
    array = array_of(first, second, large, small)
    near = NearTexts(16, 32)
    for document in (first, second):
        near.take(array.look_up(document[2490:2500], 1), array)
    taken = len(near._array)
    assert taken > 11_000
    found = array.look_up(shared, 1)
    assert array.places(found)[1] == len(array) - 2, "the large one comes first"
    near.take(found, array)
    assert len(near._array) == taken + 1 + len(small)
    assert near.look_up(shared, 2)[0].tokens == (7, 9)


def test_what_was_taken_is_known_after_the_oldest_have_gone() -> None:
    answers, document = Answers(2048), unlike(800, 0)
    answers.add(unlike(600, 1))
    answers.add(document)
    near = NearTexts(16, 32)
    near.take(answers.array.look_up(document[100:110], 1), answers.array)
    taken = len(near._array)
    assert taken == 1 + len(document)
    answers.add(unlike(700, 2))
    assert answers.array.dropped > 0, "or nothing has moved"
    found = answers.array.look_up(document[100:110], 1)
    assert found.matched == 10
    near.take(found, answers.array)
    assert len(near._array) == taken
