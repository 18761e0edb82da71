"""Tree against brute force on its token paths."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tree import EMPTY, ROOT, SHADOWS, Tree
from tests.helpers import token_path, token_paths, trees


def path_chances_of(tree: Tree) -> list[float]:
    """Each node counts as much as the weakest one on its path."""
    assert tree.weights is not None
    return [min(tree.weights[step] for step in tree.path_to(node)) for node in range(len(tree))]


def weighted_paths(tree: Tree) -> Counter[tuple[tuple[int, ...], float]]:
    assert tree.weights is not None
    return Counter(zip(token_paths(tree), tree.weights, strict=True))


@given(trees())
def test_a_path_leads_from_a_child_of_the_root_to_the_node(tree: Tree) -> None:
    assert tree.path_to(ROOT) == ()
    for node in range(len(tree)):
        path = tree.path_to(node)
        assert path[-1] == node
        assert tree.parents[path[0]] == ROOT
        assert [tree.parents[below] for below in path[1:]] == list(path[:-1])


@given(trees())
def test_depth_is_the_number_of_tokens_on_the_path(tree: Tree) -> None:
    assert tree.depths == tuple(len(path) for path in token_paths(tree))


@given(trees())
def test_the_ancestor_mask_marks_the_nodes_of_the_path_and_no_others(tree: Tree) -> None:
    mask = tree.ancestor_mask
    assert mask.shape == (len(tree), len(tree))
    for node in range(len(tree)):
        marked = [other for other in range(len(tree)) if mask[node, other]]
        assert marked == list(tree.path_to(node))


@given(trees())
def test_children_are_found_by_token_and_the_first_of_equal_siblings_counts(tree: Tree) -> None:
    for parent in range(ROOT, len(tree)):
        expected: dict[int, int] = {}
        for node in reversed(range(len(tree))):
            if tree.parents[node] == parent:
                expected[tree.tokens[node]] = node
        assert tree.children.get(parent, {}) == expected


@given(st.lists(st.integers(0, 9), max_size=6))
def test_a_chain_is_one_path(tokens: list[int]) -> None:
    tree = Tree.chain(tokens)
    assert len(tree) == len(tokens)
    assert token_path(tree, len(tree) - 1) == tuple(tokens)
    assert tree.depths == tuple(range(1, len(tokens) + 1))


def test_the_empty_tree_has_nothing() -> None:
    assert len(EMPTY) == 0
    assert EMPTY == Tree.chain([]) == Tree()
    assert EMPTY.ancestor_mask.shape == (0, 0)
    assert (EMPTY.depths, EMPTY.children) == ((), {})
    assert EMPTY.merge() == EMPTY.prune(0) == EMPTY.clip(0) == EMPTY.graft(EMPTY) == EMPTY


@given(trees(weighted=None), trees(weighted=None), st.data())
def test_grafting_hangs_every_path_below_the_node(
    mine: Tree, other: Tree, data: st.DataObject
) -> None:
    at = data.draw(st.integers(ROOT, len(mine) - 1))
    grafted = mine.graft(other, at)
    above = token_path(mine, at)
    assert token_paths(grafted) == token_paths(mine) + [above + path for path in token_paths(other)]
    if mine.weights is None and other.weights is None:
        assert grafted.weights is None
    else:
        own = mine.weights if mine.weights is not None else (1.0,) * len(mine)
        hung = other.weights if other.weights is not None else (1.0,) * len(other)
        scale = 1.0 if at == ROOT else own[at]
        assert grafted.weights == own + tuple(weight * scale for weight in hung)


@given(trees(vocab_size=2, weighted=None))
def test_merging_keeps_the_paths_and_leaves_no_equal_siblings(tree: Tree) -> None:
    merged = tree.merge()
    paths = token_paths(merged)
    assert set(paths) == set(token_paths(tree))
    assert len(paths) == len(set(paths))
    siblings = list(zip(merged.parents, merged.tokens, strict=True))
    assert len(siblings) == len(set(siblings))
    assert merged.merge() == merged


@given(trees(vocab_size=2, weighted=True))
def test_a_merged_node_has_the_largest_weight_of_those_it_unites(tree: Tree) -> None:
    assert tree.weights is not None
    united: dict[tuple[int, ...], float] = {}
    for path, weight in zip(token_paths(tree), tree.weights, strict=True):
        united[path] = max(united.get(path, 0.0), weight)
    assert weighted_paths(tree.merge()) == Counter(united.items())


@given(trees(weighted=None), st.integers(0, 14))
def test_pruning_keeps_that_many_nodes_and_never_a_node_without_its_parent(
    tree: Tree, size: int
) -> None:
    pruned = tree.prune(size)
    assert len(pruned) == min(size, len(tree))
    # That parents survived is seen in the paths: each is, in full, one of the whole tree.
    assert not Counter(token_paths(pruned)) - Counter(token_paths(tree))
    if tree.weights is not None:
        assert not weighted_paths(pruned) - weighted_paths(tree)
    else:
        assert pruned.weights is None
        assert pruned.tokens == tree.tokens[:size]


@given(trees(max_size=8, weighted=True), st.integers(0, 8))
def test_pruning_keeps_the_likeliest_nodes_of_all_sets_closed_under_parents(
    tree: Tree, size: int
) -> None:
    size = min(size, len(tree))
    path_chances = path_chances_of(tree)
    best = max(
        sum(sorted(path_chances[node] for node in kept))
        for kept in combinations(range(len(tree)), size)
        if all(tree.parents[node] in (ROOT, *kept) for node in kept)
    )
    assert sum(sorted(path_chances_of(tree.prune(size)))) == best


@given(trees(weighted=None))
def test_pruning_to_fewer_than_no_nodes_leaves_none(tree: Tree) -> None:
    """A budget may sink below zero by subtraction, and a slice counts that from the end."""
    assert len(tree.prune(-1)) == 0


@given(trees(weighted=None), st.integers(-1, 8))
def test_clipping_keeps_exactly_the_nodes_down_to_that_depth(tree: Tree, depth: int) -> None:
    clipped = tree.clip(depth)
    assert token_paths(clipped) == [path for path in token_paths(tree) if len(path) <= depth]
    if tree.weights is not None:
        kept = [
            w for w, path in zip(tree.weights, token_paths(tree), strict=True) if len(path) <= depth
        ]
        assert clipped.weights == tuple(kept)


@pytest.mark.parametrize(
    ("tokens", "parents", "weights", "said"),
    [
        ((1, 2), (-1,), None, "2 tokens but 1 parents"),
        ((), (-1,), None, "0 tokens but 1 parents"),
        ((1, 2), (-1, 0), (0.5,), "2 tokens but 1 weights"),
        ((1,), (0,), None, "parent 0 of node 0"),
        ((1, 2, 3), (-1, 2, 0), None, "parent 2 of node 1"),
        ((1,), (-2,), None, "parent -2 of node 0"),
        ((1, -1), (-1, 0), None, "negative token id -1"),
    ],
)
def test_what_is_no_tree_is_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], weights: tuple[float, ...] | None, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Tree(tokens, parents, weights)


@pytest.mark.parametrize("at", [-2, 2, 7])
@pytest.mark.parametrize("weights", [None, (0.5, 0.5)])
def test_grafting_at_a_node_that_does_not_exist_is_refused(
    at: int, weights: tuple[float, ...] | None
) -> None:
    with pytest.raises(ValueError, match=f"{at}"):
        Tree((1, 2), (-1, 0), weights).graft(Tree.chain([3]), at)


def test_a_weight_that_is_no_number_is_refused() -> None:
    """NaN has no place in an order: `prune` would keep a node without its parent and fall over."""
    with pytest.raises(ValueError, match="nan"):
        Tree((1, 2), (-1, 0), (math.nan, 0.5))


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=6))
def test_a_tree_of_paths_has_each_beginning_of_each_once(paths: list[list[int]]) -> None:
    tree = Tree.of_paths(paths)
    found = token_paths(tree)
    beginnings = [tuple(path[:size]) for path in paths for size in range(1, len(path) + 1)]
    assert found == list(dict.fromkeys(beginnings))


@given(trees(), st.lists(st.integers(0, 4), max_size=4))
def test_a_path_of_tokens_finds_the_node_that_a_walk_would_reach(
    tree: Tree, path: list[int]
) -> None:
    node: int | None = ROOT
    for token in path:
        below = [each for each in range(len(tree)) if tree.parents[each] == node]
        node = next((each for each in below if tree.tokens[each] == token), None)
        if node is None:
            break
    assert tree.find(path) == node


def test_shadows_are_read_as_the_tokens_they_are_the_shadows_of() -> None:
    tree = Tree((7, SHADOWS + 7, SHADOWS, 49152), (-1, -1, 1, 0))
    assert tree.as_read == (7, 7, 0, 49152)
    assert tree.find((SHADOWS + 7, SHADOWS)) == 2 and tree.find((7, 0)) is None
