"""The likeliest paths against the plainest way to find them: all of them, sorted."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.tables import VICUNA, tables

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.candidate_tree import CandidateTree, Ranks, likeliest
from paceline.tree import ROOT


def every_path(table: AcceptanceTable, depth: int) -> dict[Ranks, float]:
    """All paths with their probabilities, likeliest first, without those that cannot be right."""
    paths = {
        path: prod(row[rank] for row, rank in zip(table.rows, path))
        for length in range(1, min(depth, table.distances) + 1)
        for path in product(range(table.ranks), repeat=length)
    }
    found = {path: share for path, share in paths.items() if share > 0}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def test_the_example_of_the_docstring() -> None:
    tree = likeliest(((0.5, 0.2), (0.4, 0.1)), 4)
    assert tree.paths == ((0,), (0, 0), (1,), (1, 0))
    assert tree.path_chances == pytest.approx((0.5, 0.2, 0.2, 0.08))
    assert tree.parents == (ROOT, 0, ROOT, 2)
    assert tree.expected == pytest.approx(0.98)
    assert tree.last == pytest.approx([0.3, 0.2, 0.12, 0.08])


@given(table=tables(), depth=st.integers(0, 4), count=st.integers(0, 60))
def test_it_finds_the_likeliest_paths(table: AcceptanceTable, depth: int, count: int) -> None:
    tree = likeliest(table.rows[:depth], count)
    wanted = every_path(table, depth)
    assert len(tree) == min(count, len(wanted))
    assert len(set(tree.paths)) == len(tree)
    assert list(tree.path_chances) == pytest.approx(list(wanted.values())[:count])
    for path, path_chance in zip(tree.paths, tree.path_chances):
        assert path_chance == pytest.approx(wanted[path])
    assert all(above >= below for above, below in pairwise(tree.path_chances))


@given(table=tables(), depth=st.integers(1, 4), count=st.integers(0, 40))
def test_every_beginning_is_a_tree_with_parents_first(
    table: AcceptanceTable, depth: int, count: int
) -> None:
    whole = likeliest(table.rows[:depth], 40)
    tree = whole.first(count)
    assert tree == likeliest(table.rows[:depth], count)
    for node, (path, parent) in enumerate(zip(tree.paths, tree.parents)):
        assert ROOT <= parent < node and len(path) <= depth
        assert path[:-1] == (() if parent == ROOT else tree.paths[parent])
    # Of all ways a round can end, exactly one comes true.
    assert min(tree.last, default=0) >= 0
    rejected = 1 - sum(
        share for share, parent in zip(tree.path_chances, tree.parents) if parent == ROOT
    )
    assert sum(tree.last) + rejected == pytest.approx(1)
    lengths = [len(path) for path in tree.paths]
    assert sum(tree.last * lengths) == pytest.approx(tree.expected)


@given(table=tables(), count=st.integers(1, 40))
def test_more_guesses_and_deeper_trees_are_never_worth_less(
    table: AcceptanceTable, count: int
) -> None:
    values = [likeliest(table.rows[:depth], count).expected for depth in range(table.distances + 1)]
    assert values[0] == 0
    assert all(below <= above + 1e-12 for below, above in pairwise(values))
    fewer = likeliest(table.rows[: table.distances], count - 1)
    assert fewer.expected <= values[-1] + 1e-12


def test_ties_are_broken_by_rank() -> None:
    even = AcceptanceTable(((0.25,) * 4,))
    assert likeliest(even.rows[:1], 3).paths == ((0,), (1,), (2,))


def test_an_empty_tree_has_no_last_nodes() -> None:
    assert len(CandidateTree().last) == 0 and CandidateTree().expected == 0


def test_many_candidates_are_found_at_once() -> None:
    deep = AcceptanceTable(
        (VICUNA.rows[0],) * 8
    )  # 111 million paths: to try all would take minutes
    assert len(likeliest(deep.rows[:8], 512)) == 512
