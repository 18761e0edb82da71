"""Suffix arrays against a naive search, by the library and without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.interrupted import everywhere

from paceline.datastore import BORDER, LONGEST, GrowingSuffixArray, Search, SuffixArray
from paceline.datastore import suffix_array as module
from paceline.datastore.search import NOTHING, Found
from paceline.datastore.sorting import sort_places
from paceline.drafters.lookup import FOLLOWER_DOUBT, follower_confidence
from paceline.errors import UsageError
from paceline.kernels.native import buffer
from paceline.tree import EMPTY

# Small alphabets make many repeats; every other text has borders.
token = st.integers(0, 2)
texts = st.lists(st.one_of(token, token, token, st.just(BORDER)), max_size=60)
tails = st.lists(st.integers(0, 3), min_size=1, max_size=8)
searches = st.builds(
    Search,
    least=st.integers(1, 2),
    hits=st.sampled_from([1, 3, 256]),
    depth=st.integers(1, 5),
    branches=st.sampled_from([1, 2, 256]),
    per_match=st.sampled_from([0, 0, 1, 3]),
)


def array_of(tokens: Sequence[int]) -> SuffixArray:
    return SuffixArray(np.array(tokens, dtype=np.int32))


def before(tokens: Sequence[int], place: int) -> list[int]:
    """Read backwards as far as a border, padded with borders."""
    found: list[int] = []
    while place - len(found) > 0 and len(found) < LONGEST:
        if (one := tokens[place - len(found) - 1]) == BORDER:
            break
        found.append(one)
    return found + [BORDER] * (LONGEST - len(found))


def naive_order(tokens: Sequence[int]) -> list[int]:
    pairs = range(1, len(tokens))
    places = [place for place in pairs if BORDER not in tokens[place - 1 : place + 1]]
    return sorted(places, key=lambda place: (before(tokens, place), place))


def places_after(tokens: Sequence[int], run: Sequence[int]) -> list[int]:
    """Where a run stands with something after it."""
    size = len(run)
    found = [p for p in range(size, len(tokens)) if list(tokens[p - size : p]) == list(run)]
    return [place for place in found if tokens[place] != BORDER]


def naive(tokens: Sequence[int], tail: Sequence[int], least: int = 1) -> tuple[int, int, int]:
    """Length and places of the longest suffix, and length of the next one with more places."""
    counts = [len(places_after(tokens, tail[-size:])) for size in range(1, len(tail) + 1)]
    matched = max((size for size, count in enumerate(counts, 1) if count), default=0)
    if matched < least:
        return 0, 0, 0
    most = counts[matched - 1]
    return matched, max((n for n, count in enumerate(counts, 1) if count > most), default=0), most


@pytest.fixture(params=["library", "python"])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(module, "unavailable", lambda: "was not built")
    elif module.unavailable():
        pytest.skip(module.unavailable())


@given(tokens=texts, above=st.sampled_from([0, 100_000, 2**31 - 3]))
def test_places_are_sorted_by_what_stands_before_them(tokens: list[int], above: int) -> None:
    """Also if ids are larger than the text is long."""
    tokens = [one if one == BORDER else above + one for one in tokens]
    assert sort_places(np.array(tokens, dtype=np.int32)).tolist() == naive_order(tokens)


def test_long_equal_runs_are_told_apart_by_their_place_alone() -> None:
    tokens = [5] * 200 + [BORDER] + [5] * 100
    assert sort_places(np.array(tokens, dtype=np.int32)).tolist() == naive_order(tokens)


@pytest.mark.usefixtures("_how")
@given(tokens=texts, tail=tails, search=searches, budget=st.integers(1, 12))
def test_the_longest_suffix_is_found_with_all_that_followed_it(
    tokens: list[int], tail: list[int], search: Search, budget: int
) -> None:
    found = array_of(tokens).look_up(tail, budget, search)
    matched, shorter, count = naive(tokens, tail, search.least)
    assert (found.matched, found.shorter, found.places) == (matched, shorter, count)
    tree = found.tree
    assert len(tree) <= min(budget, search.per_match * matched or budget)
    assert max(tree.depths, default=0) <= search.depth
    assert all(len(children) <= search.branches for children in tree.children.values())
    assert sum(map(len, tree.children.values())) == len(tree)  # no twins
    assert list(tree.weights or ()) == sorted(tree.weights or (), reverse=True)
    assert bool(matched) == bool(len(tree))
    for node in range(len(tree)):
        path = [tree.tokens[each] for each in tree.path_to(node)]
        run = [*tail[len(tail) - matched :], *path]
        assert any(tokens[at : at + len(run)] == run for at in range(len(tokens)))


@pytest.mark.usefixtures("_how")
@given(tokens=texts, tail=tails)
def test_weights_are_the_smoothed_shares_of_what_followed(
    tokens: list[int], tail: list[int]
) -> None:
    """All of the tree, where nothing is left out: compared with counts by hand."""
    search = Search(hits=256, depth=3, doubt=FOLLOWER_DOUBT)
    found = array_of(tokens).look_up(tail, 500, search)
    run = tail[len(tail) - found.matched :]
    weights: dict[tuple[int, ...], float] = {}
    above: dict[tuple[int, ...], float] = {(): 1.0}
    for depth in range(3 if found.matched else 0):
        for path, weight in list(above.items()):
            if len(path) != depth:
                continue
            stands = places_after(tokens, [*run, *path])
            following = Counter(tokens[place] for place in stands)
            for token, seen in following.items():
                share = follower_confidence(found.matched + depth, seen, len(stands))
                above[(*path, token)] = weights[(*path, token)] = weight * share
    tree = found.tree
    paths = [tuple(tree.tokens[each] for each in tree.path_to(n)) for n in range(len(tree))]
    assert set(paths) == set(weights)
    for path, weight in zip(paths, tree.weights or (), strict=True):
        assert weight == pytest.approx(weights[path])


def test_of_equally_likely_ones_the_last_comes_first() -> None:
    found = array_of([1, 5, BORDER, 1, 6, BORDER, 1, 7]).look_up([1], 3)
    assert found.tree.tokens == (7, 6, 5)


@pytest.mark.parametrize("hits", [1, 4, 256])
def test_of_many_places_an_even_sample_is_looked_at(hits: int) -> None:
    tokens = [one for i in range(1000) for one in (1, 2 + (i >= 500), BORDER)]
    found = array_of(tokens).look_up([1], 9, Search(hits=hits))
    assert found.places == 1000 and len(found.tree) == (1 if hits == 1 else 2)


@given(tokens=texts, tail=tails, search=searches, budget=st.integers(0, 12))
def test_the_library_gives_what_python_gives_bit_for_bit(
    tokens: list[int], tail: list[int], search: Search, budget: int
) -> None:
    if module.unavailable():
        pytest.skip(module.unavailable())
    array = array_of(tokens)
    by_library = array.look_up(tail, budget, search)
    array._native = None
    assert array.look_up(tail, budget, search) == by_library


@pytest.mark.usefixtures("_how")
@given(
    tokens=texts,
    tail=tails,
    search=searches,
    budget=st.integers(0, 12),
    lengths=st.integers(1, 4),
)
def test_of_matches_of_several_lengths_the_first_of_the_best_score_counts(
    tokens: list[int], tail: list[int], search: Search, budget: int, lengths: int
) -> None:
    array, trees, length = array_of(tokens), [], len(tail)
    for _ in range(lengths):
        found = array.look_up(tail[-length:], budget, search)
        trees.append(found.tree)
        length = found.shorter
        if not length:
            break
    scores = [sum(tree.weights or ()) for tree in trees]
    tree, score = array.look_up_lengths(tail, budget, search, lengths)
    assert score == pytest.approx(max(scores))
    assert tree == (trees[scores.index(max(scores))] if max(scores) > 0 else EMPTY)


changes = st.one_of(
    st.lists(st.integers(BORDER, 2), min_size=1, max_size=9), st.floats(0, 1), st.just(None)
)


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("inserted", [3, 1000])
@given(steps=st.lists(changes, max_size=12))
def test_a_text_that_grows_is_as_one_that_was_sorted_at_once(
    inserted: int, steps: list[list[int] | float | None]
) -> None:
    """Tokens come at the end, some are taken back there, and whole documents go at the front."""
    before_all = module._INSERTED, module._SLOWLY_INSERTED
    module._INSERTED = module._SLOWLY_INSERTED = inserted
    try:
        array, tokens = GrowingSuffixArray(), list[int]()
        for step in steps:
            if isinstance(step, list):
                array.add(step)
                tokens += step
            elif step is not None:
                kept = int(step * len(tokens))
                array.take_back(kept)
                del tokens[kept:]
            elif BORDER in tokens:
                gone = tokens.index(BORDER)
                array.drop(gone)
                del tokens[:gone]
            assert array.tokens.tolist() == tokens
            assert array._order[: array._call.size].tolist() == naive_order(tokens)
    finally:
        module._INSERTED, module._SLOWLY_INSERTED = before_all


@pytest.mark.parametrize(("library", "most"), [(True, 4096), (False, 4 + 20_000 // 256)])
def test_an_answer_is_sorted_into_what_is_there_unless_it_is_long(
    library: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library and module.unavailable():
        pytest.skip(module.unavailable())
    sizes: list[int] = []

    def counted(tokens: np.ndarray) -> np.ndarray:
        sizes.append(len(tokens))
        return sort_places(tokens)

    array = GrowingSuffixArray()
    array.add(np.random.default_rng(0).integers(0, 50_000, 20_000).tolist())
    if not library:
        array._native = None
    monkeypatch.setattr(module, "sort_places", counted)
    array.add([BORDER, *range(most - 1)])
    assert sizes == []
    array.take_back(20_000)
    array.add([BORDER, *range(most)])
    assert sizes == [20_000 + most + 1]


def test_what_follows_the_last_token_is_not_known() -> None:
    array = GrowingSuffixArray()
    array.add([1, 2])
    assert array.look_up([1, 2], 5) == NOTHING
    array.add([1, 2])
    found = array.look_up([1, 2], 5)
    assert found.matched == 2 and found.tree.tokens == (1, 2)


@pytest.mark.usefixtures("_how")
def test_an_order_that_names_no_places_of_the_text_is_no_crash() -> None:
    """Files are checked; this is for those that were damaged between the check and now."""
    wrong = np.array([-7, 2**31 - 1, 3, 1, -(2**31)], dtype=np.int32)
    array = SuffixArray(np.array([1, 2, 1, 2, 3], dtype=np.int32), wrong)
    for tail in ([1], [2], [1, 2], [9]):
        assert isinstance(array.look_up(tail, 5), Found)


@pytest.mark.parametrize("wrong", [[-2], [2**31], [1, 2, -5]])
def test_ids_that_cannot_be_are_refused(wrong: list[int]) -> None:
    array = GrowingSuffixArray()
    with pytest.raises(UsageError, match="token id"):
        array.add(wrong)
    assert len(array) == 0


def test_a_text_can_be_used_after_an_interruption_anywhere() -> None:
    """What is known of it may be lost, but the library writes only to what is there."""
    for interrupt in everywhere(module, buffer):
        array = GrowingSuffixArray()
        array.add([BORDER, *range(600)])
        array.add([BORDER, *range(600)])
        assert len(array) == len(array._tokens)
        interrupt(lambda array=array: (array.add([1]), array.drop(601)))
        more = [BORDER, *range(3000)]
        array.add(more)
        assert array.tokens[-len(more) :].tolist() == more
        assert array.look_up([7, 8], 1).tree.tokens == (9,)
