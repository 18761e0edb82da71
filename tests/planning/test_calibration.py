"""What a drafter claims, corrected by what came true."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from tests.helpers import trees

from paceline.planning.calibration import Calibration, ChainCalibration, Evidence, Watch
from paceline.tree import Tree

CHAIN = Tree((5, 6, 7), (-1, 0, 1), (0.5, 0.4, 0.1))


def observe(calibration: Calibration, tree: Tree, *tokens: int) -> list[Evidence]:
    """The tree was proposed, and then these tokens were said."""
    watch = Watch()
    watch.expect(tree)
    seen = list(watch.observe(tokens))
    for each in seen:
        calibration.add(each)
    return seen


def test_at_first_a_drafter_is_believed() -> None:
    assert Calibration().path_chances(CHAIN) == pytest.approx([0.5, 0.4, 0.1])
    assert Calibration().path_chances(Tree.chain([1, 2])) == pytest.approx([0.5, 0.25])


@given(trees(weighted=None))
def test_no_node_is_likelier_than_its_parent(tree: Tree) -> None:
    path_chances = Calibration().path_chances(tree)
    for node, parent in enumerate(tree.parents):
        assert 0 < path_chances[node] <= (1.0 if parent == -1 else path_chances[parent])


def test_it_learns_every_kind_by_itself() -> None:
    """The first guess is always right, the one after it never."""
    calibration = Calibration()
    for _ in range(60):
        observe(calibration, CHAIN, 5, 99)
    first, second, third = calibration.path_chances(CHAIN)
    assert first > 0.9 and second < 0.12
    assert third == pytest.approx(second * 0.25, rel=0.7)  # never seen: its parent was wrong


def test_guesses_after_a_wrong_one_are_no_evidence() -> None:
    (seen,) = observe(Calibration(), CHAIN, 99, 6, 7)
    assert (seen.claim, seen.right) == (0.5, False)


def test_a_tree_is_followed_as_long_as_it_is_right() -> None:
    """Over several rounds, while others are proposed."""
    watch = Watch()
    watch.expect(CHAIN)
    assert [seen.right for seen in watch.observe([5])] == [True]
    watch.expect(Tree.chain([8]))
    assert [(seen.claim, seen.right) for seen in watch.observe([6])] == [(0.8, True), (0.5, False)]
    assert [seen.right for seen in watch.observe([7, 7])] == [True]
    assert list(watch.observe([7])) == []


def test_of_siblings_the_wrong_ones_count_as_well() -> None:
    calibration, tree = Calibration(), Tree((5, 6, 6), (-1, -1, -1), (0.9, 0.3, 0.3))
    for _ in range(40):
        observe(calibration, tree, 6, 1)
    first, second, _ = calibration.path_chances(tree)
    assert first < 0.15 and second > 0.8


def test_a_guess_that_ended_the_text_was_right() -> None:
    calibration = Calibration()
    for _ in range(20):
        observe(calibration, CHAIN, 5)  # said, and the text was over
    assert calibration.path_chances(CHAIN)[0] > 0.8


def test_old_evidence_fades() -> None:
    calibration = Calibration(memory=10)
    for _ in range(500):
        observe(calibration, CHAIN, 99)
    for _ in range(20):
        observe(calibration, CHAIN, 5, 99)
    assert calibration.path_chances(CHAIN)[0] > 0.6


def test_an_heir_expects_the_same_and_learns_faster() -> None:
    session = Calibration(400)
    for _ in range(300):
        observe(session, CHAIN, 99)
    inherited = session.inherited(32, evidence=8)
    assert session.path_chances(CHAIN)[0] < 0.05
    assert inherited.path_chances(CHAIN)[0] < 0.2
    for calibration in (session, inherited):
        for _ in range(10):
            observe(calibration, CHAIN, 5, 99)
    assert inherited.path_chances(CHAIN)[0] > 0.5 > session.path_chances(CHAIN)[0]


def sourced(claims: dict[int, float]) -> Tree:
    """One guess at depth 1 for each: sources -> claim. Tokens are the sources."""
    return Tree(tuple(claims), (-1,) * len(claims), tuple(claims.values()), tuple(claims))


def test_every_set_of_sources_is_learned_by_itself() -> None:
    """The first is right where it claims a half, the second never."""
    calibration = Calibration()
    for _ in range(60):
        observe(calibration, sourced({1: 0.5, 2: 0.5}), 1)
    first, second = calibration.path_chances(sourced({1: 0.5, 2: 0.5}))
    assert first > 0.9 and second < 0.1


def test_an_unseen_set_is_believed_as_its_likeliest_member_is() -> None:
    calibration = Calibration()
    for _ in range(60):
        observe(calibration, sourced({1: 0.5, 2: 0.5}), 1)
    claims = dict.fromkeys((1, 2, 3), 0.1)  # kinds that were not seen themselves
    first, second, both = calibration.path_chances(sourced(claims))
    assert both == first > 2 * second


def test_an_unseen_source_is_believed_as_all_guesses_are() -> None:
    calibration = Calibration()
    for _ in range(60):
        observe(calibration, sourced({1: 0.5}), 99)
    (unseen,) = calibration.path_chances(sourced({2: 0.5}))
    assert unseen < 0.1


def test_agreement_counts() -> None:
    """Two that are right in a third of their guesses each, and always where they agree."""
    calibration = Calibration()
    for place in range(90):
        tree = sourced({3: 0.5} if place % 3 == 0 else {1: 0.5, 2: 0.5})
        observe(calibration, tree, 3 if place % 3 == 0 else 99)
    one, both = calibration.path_chances(sourced({1: 0.5, 3: 0.5}))
    assert one < 0.1 and both > 0.8


def test_an_heir_knows_the_sources() -> None:
    session = Calibration(400)
    for _ in range(100):
        observe(session, sourced({1: 0.5, 2: 0.5}), 1)
    inherited = session.inherited(32, evidence=8)
    # Another depth is another kind, of which only the source is known.
    deep = Tree((5, 6, 7), (-1, 0, 1), (0.9, 0.8, 0.4), (1, 1, 1))
    other = Tree((5, 6, 7), (-1, 0, 1), (0.9, 0.8, 0.4), (2, 2, 2))
    assert inherited.path_chances(deep)[2] > inherited.path_chances(other)[2]


@given(trees(weighted=True))
def test_trees_without_sources_are_those_of_one_that_has_no_name(tree: Tree) -> None:
    plain, marked = Calibration(), Calibration()
    without = replace(tree, sources=(0,) * len(tree))
    for calibration, proposed in ((plain, tree), (marked, without)):
        observe(calibration, proposed, 0, 1, 0)
    assert marked.path_chances(without) == plain.path_chances(tree)


def test_a_table_says_of_chains_what_is_known_of_them() -> None:
    rng, calibration = random.Random(0), ChainCalibration(48.0, 12)
    for _ in range(300):
        claim, depth = rng.random(), rng.randrange(1, 13)
        calibration.learn(claim, depth, rng.random() < claim / 2)
        claims = [rng.uniform(0.2, 1.0) for _ in range(12)]
        weights = tuple(accumulate(claims, mul))
        chances = [
            calibration.table.chance(claim, depth) for depth, claim in enumerate(claims, start=1)
        ]
        tree = replace(Tree.chain(range(12)), weights=weights)
        assert calibration.path_chances(tree) == pytest.approx([*accumulate(chances, mul)])
