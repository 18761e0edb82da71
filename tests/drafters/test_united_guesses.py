"""Unions in the library against those without it, which test_tree_sources.py describes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.c_library import needs_library, without_library
from tests.helpers import trees

from paceline.drafters import united_guesses as module
from paceline.drafters.united_guesses import UnitedGuesses, unite
from paceline.tree import EMPTY, ROOT, Tree

Make = Callable[[int], UnitedGuesses]


def portable(alike: int) -> UnitedGuesses:
    with without_library(module):
        return unite(alike)


@pytest.fixture(params=[pytest.param(unite, marks=needs_library), portable])
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


@needs_library
@given(
    st.lists(st.tuples(trees(max_size=40, weighted=None), st.integers(0, 3)), max_size=6),
    st.integers(0, 15),
    st.integers(0, 30),
    st.data(),
)
def test_both_unite_alike(
    proposed: list[tuple[Tree, int]], alike: int, most: int, data: st.DataObject
) -> None:
    one, other = unite(alike), portable(alike)
    assert type(one) is not type(other)
    for again in range(2):  # the second round knows nothing of the first
        one.clear()
        other.clear()
        nodes = 0
        for tree, place in proposed:
            at = data.draw(st.integers(ROOT, nodes - 1))
            one.add(tree, 1 << place, at)
            other.add(tree, 1 << place, at)
            assert one.sure == pytest.approx(other.sure, abs=1e-12)
            nodes = min(nodes + len(tree), 1) if again else nodes
        for sources in (1, 6, 15):
            assert one.ends(sources, 2) == other.ends(sources, 2)
        assert one.tree(most) == other.tree(most)


def test_nothing_united_is_no_tree(make: Make) -> None:
    united = make(0)
    united.add(EMPTY, 1)
    assert united.tree(8) == EMPTY and united.sure == 0 and list(united.ends(1, 2)) == []


def test_what_follows_an_end_hangs_below_it(make: Make) -> None:
    united = make(0)
    united.add(Tree((7, 8), (-1, 0), (0.8, 0.4)), 1)
    united.add(Tree((9,), (-1,), (0.2,)), 2)
    ((node, _),) = united.ends(1, 2)
    assert node == 1
    united.add(Tree((5,), (-1,), (0.5,)), 2, at=1)
    tree = united.tree(8)
    assert (tree.tokens, tree.parents, tree.sources) == ((7, 8, 9, 5), (-1, 0, -1, 1), (1, 1, 2, 2))
    assert tree.weights == pytest.approx((0.8, 0.4, 0.2, 0.2))
    assert united.sure == pytest.approx(1.6)


def test_more_than_there_is_room_for_at_first(make: Make) -> None:
    united = make(0)
    for begin in (0, 500, 1000):
        chain = tuple(range(begin, begin + 500))
        united.add(Tree(chain, tuple(range(-1, 499)), tuple(0.99**n for n in range(500))), 1)
    tree = united.tree(1200)
    assert len(tree) == 1200 and tree.weights == pytest.approx([0.99**n for n in range(400)] * 3)
