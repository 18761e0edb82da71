"""N-grams in the library against those without it, which test_anpd.py holds to recounting."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.c_library import needs_library, without_library
from tests.ngram_sizes import sizes

from paceline.drafters import Anpd
from paceline.drafters import ngrams as module
from paceline.drafters.ngrams import NGrams, new_ngrams
from paceline.errors import UsageError
from paceline.tree import Tree

texts = st.lists(st.integers(0, 3), max_size=60)
Make = Callable[..., NGrams]


def portable(*settings: int) -> NGrams:
    with without_library(module):
        return new_ngrams(*settings)


@pytest.fixture(params=[pytest.param(new_ngrams, marks=needs_library), portable])
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


def same(one: Tree, other: Tree) -> None:
    """But for equally likely nodes, which rounding may order either way."""

    def paths(tree: Tree) -> dict[tuple[int, ...], float]:
        weights = tree.weights or ()
        return {
            tuple(tree.tokens[each] for each in tree.path_to(node)): round(weights[node], 12)
            for node in range(len(tree))
        }

    found, expected = paths(one), paths(other)
    assert sorted(found.values()) == sorted(expected.values())
    least = min(expected.values(), default=0.0)
    for path in found.keys() ^ expected.keys():
        assert {**found, **expected}[path] == least  # cut off among equals
    assert list(one.weights or ()) == sorted(one.weights or (), reverse=True)


def both(*settings: int) -> tuple[NGrams, NGrams]:
    one, other = new_ngrams(*settings), portable(*settings)
    assert type(one) is not type(other)
    return one, other


@needs_library
@given(
    parts=st.lists(texts, min_size=1, max_size=4),
    others=texts,
    tail=st.lists(st.integers(0, 4), max_size=8),
    lengths=st.tuples(st.integers(1, 3), st.integers(0, 4)),
    width=st.integers(1, 4),
    budget=st.integers(0, 80),
    depth=st.integers(1, 6),
)
def test_both_draft_the_same(
    parts: list[list[int]],
    others: list[int],
    tail: list[int],
    lengths: tuple[int, int],
    width: int,
    budget: int,
    depth: int,
) -> None:
    settings = lengths[0], sum(lengths), width, 1024
    pairs = both(*settings), both(*settings)
    for each in pairs[1]:
        each.count((), others)
    text: list[int] = []
    for part in parts:
        for each in pairs[0]:
            each.count(text, part)
        text += part
    for known in (None, pairs[1]):
        after = known or (None, None)
        for asked in (tuple(tail), tuple(text)):
            found, expected = (
                one.draft(asked, budget, depth, other) for one, other in zip(pairs[0], after)
            )
            same(found, expected)
            assert len(found) <= budget and max(found.depths, default=0) <= depth
    assert sizes(pairs[0][0]) == sizes(pairs[0][1])


@needs_library
@pytest.mark.parametrize(("symbols", "most"), [(500, 1024), (40, 1024), (2000, 4096)])
def test_both_forget_the_same(symbols: int, most: int) -> None:
    rng, text = random.Random(symbols), list[int]()
    one, other = both(1, 3, 2, most)
    for _ in range(60):
        part = [min(rng.randrange(symbols), rng.randrange(symbols)) for _ in range(100)]
        for each in (one, other):
            each.count(text, part)
        text += part
        assert sizes(one) == sizes(other)
        for token in rng.sample(text, 20):
            same(one.draft((token,), 9, 4), other.draft((token,), 9, 4))
    assert max(sizes(one)) <= most and sizes(one)[1] > most // 4


def test_runs_counted_longest_ago_are_forgotten(make: Make) -> None:
    known = make(1, 1, 1, 32 * 8)
    for token in range(6):
        known.count((32 * token,), (1,))  # all of one shard
    known.count((0,), (2,))
    known.count((0,), (3,))
    assert sizes(known) == [8]
    known.count((32 * 9,), (1,))
    assert sizes(known) == [4]
    assert [token for token in range(10) if len(known.draft((32 * token,), 1, 1))] == [0, 9]


def test_a_run_with_more_followers_than_there_is_room_for_begins_anew(make: Make) -> None:
    known = make(1, 1, 2, 32 * 8)
    for token in range(100):
        known.count((0,), (token,))
        assert sizes(known)[0] <= 8
    known.count((0,), (7,))
    assert known.draft((0,), 1, 1).tokens == (7,)


@needs_library
def test_runs_with_equal_hashes_in_different_shards_stay_apart() -> None:
    """With a hash alone these two runs of four tokens had one key, which broke the lists."""
    rng = random.Random(1)
    text = [1, 2, 3, 20, 0, 27360, 7056, 9780, 27618, 91, 24960, 28859]
    text += [27 + 32 * rng.randrange(1000) for _ in range(2300)]
    one, other = both(1, 5, 4, 1 << 16)
    for each in (one, other):
        each.count((), text)
    assert sizes(one) == sizes(other)
    same(one.draft(tuple(text[6:8]), 9, 4), other.draft(tuple(text[6:8]), 9, 4))


def test_what_is_not_known_here_is_looked_up_in_another(make: Make) -> None:
    known = make(1, 5, 4, 1024)
    known.count((), [1, 2, 3, 1, 2])
    assert known.draft((2,), 9, 3).tokens == (3, 1, 2)
    fresh = make(1, 5, 4, 1024)
    assert not any(sizes(fresh)) and fresh.draft((2,), 9, 3) == Tree()
    assert fresh.draft((2,), 9, 3, known).tokens == (3, 1, 2)


@needs_library
@pytest.mark.parametrize("ids", [[-1, 2], [3, 1 << 31]])
def test_ids_that_cannot_be_are_refused(ids: Sequence[int]) -> None:
    with pytest.raises(UsageError, match="a token id is negative or does not fit into 32 bits"):
        new_ngrams(1, 5, 4, 1024).count((), ids)


@given(text=texts, budget=st.integers(0, 20))
def test_anpd_drafts_without_the_library(text: list[int], budget: int) -> None:
    with without_library(module):
        slow = Anpd()
    fast = Anpd()
    for drafter in (slow, fast):
        drafter._learn(text)
    same(fast.propose(budget), slow.propose(budget))
