"""Trees whose nodes know who proposed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tree import EMPTY, ROOT, Tree
from tests.helpers import token_path, token_paths, trees


def falling(tree: Tree, claims: Sequence[float]) -> Tree:
    """The same with weights that are products of the claims on the way."""
    weights = tuple(prod(claims[step] for step in tree.path_to(node)) for node in range(len(tree)))
    return replace(tree, weights=weights)


@st.composite
def of_one_source(draw: st.DrawFn, source: int) -> Tree:
    """A tree without twins, whose weights fall from parent to child."""
    tree = draw(trees(max_size=8, vocab_size=3)).merge()
    shares = st.sampled_from([0.1, 0.25, 0.5, 0.9])
    claims = draw(st.lists(shares, min_size=len(tree), max_size=len(tree)))
    return falling(tree, claims).marked(source)


def by_path(tree: Tree, values: Sequence[float]) -> dict[tuple[int, ...], float]:
    return dict(zip(token_paths(tree), values, strict=True))


def sources_by_path(tree: Tree) -> dict[tuple[int, ...], int]:
    assert tree.sources is not None
    return dict(zip(token_paths(tree), tree.sources, strict=True))


@given(st.tuples(*(of_one_source(source) for source in range(3))))
def test_a_united_node_knows_all_who_proposed_it_and_is_wrong_only_if_all_are(
    proposed: tuple[Tree, ...],
) -> None:
    one, two, three = proposed
    united = one.graft(two).graft(three).merge()
    claims, sources = by_path(united, united.claims), sources_by_path(united)
    for path, claim in claims.items():
        said = {
            place: by_path(tree, tree.claims)[path]
            for place, tree in enumerate(proposed)
            if path in by_path(tree, tree.claims)
        }
        assert sources[path] == sum(1 << place for place in said)
        assert claim == pytest.approx(1 - prod(1 - each for each in said.values()))
    assert set(claims) == {path for tree in proposed for path in token_paths(tree)}


@given(st.tuples(*(of_one_source(source) for source in range(3))), st.permutations(range(3)))
def test_the_order_of_sources_does_not_matter(
    proposed: tuple[Tree, ...], order: Sequence[int]
) -> None:
    one, other = EMPTY, EMPTY
    for tree in proposed:
        one = one.graft(tree)
    for place in order:
        other = other.graft(proposed[place])
    one, other = one.merge(), other.merge()
    assert by_path(one, one.weights or ()) == pytest.approx(by_path(other, other.weights or ()))
    assert len(one) == 0 or sources_by_path(one) == sources_by_path(other)


@given(of_one_source(0))
def test_a_source_that_repeats_itself_is_no_second_opinion(tree: Tree) -> None:
    again = tree.graft(tree).merge()
    assert by_path(again, again.weights or ()) == pytest.approx(by_path(tree, tree.weights or ()))
    assert again.sources == tree.sources


@given(of_one_source(0), of_one_source(2), st.data())
def test_sources_are_kept_whatever_is_cut(one: Tree, two: Tree, data: st.DataObject) -> None:
    at = data.draw(st.integers(ROOT, len(one) - 1))
    whole = one.graft(two, at)
    assert whole.sources == (1,) * len(one) + (4,) * len(two)
    merged = whole.merge()
    known = sources_by_path(merged) if len(merged) else {}
    size = data.draw(st.integers(0, 10))
    for cut in (merged.prune(size), merged.clip(size), merged.spine()):
        assert cut.sources is not None or len(merged) == 0
        for node in range(len(cut)):
            assert cut.sources is not None
            assert cut.sources[node] == known[token_path(cut, node)]


def test_nodes_without_a_source_stay_without_one_beside_others() -> None:
    one, two = Tree.chain([1, 2]), Tree.chain([3]).marked(1)
    assert one.graft(two, 0).sources == (0, 0, 2)
    assert two.graft(one).sources == (2, 0, 0)
    assert one.graft(one).sources is None


def test_a_node_is_weighed_anew_below_a_parent_that_became_likelier() -> None:
    """The second node's own claim, a half, stays what it is."""
    one = Tree.chain([7, 8])
    mine, other = falling(one, (0.5, 0.5)).marked(0), falling(Tree.chain([7]), (0.6,)).marked(1)
    merged = mine.graft(other).merge()
    assert merged.weights == pytest.approx((0.8, 0.4))
    assert merged.sources == (3, 1)


def test_as_many_sources_as_nodes_are_wanted() -> None:
    with pytest.raises(ValueError, match="2 tokens but 1 sources"):
        Tree((1, 2), (-1, 0), None, (1,))
