"""What comes true of a text's trees, in the library against the description without it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.c_library import needs_library, without_library
from tests.helpers import trees
from tests.interrupted import everywhere

from paceline import tree_columns
from paceline.kernels.native import buffer
from paceline.planning import text_calibration as module
from paceline.planning.text_calibration import SessionCalibration, new_calibration
from paceline.tree import EMPTY, Tree

Make = Callable[[float], SessionCalibration]
said = st.lists(st.integers(0, 3), max_size=4)


def portable(memory: float) -> SessionCalibration:
    with without_library(module):
        return new_calibration(memory)


@pytest.fixture(params=[pytest.param(new_calibration, marks=needs_library), portable])
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


def by_several(tree: Tree, rng: random.Random) -> Tree:
    """The same, proposed by up to three sources."""
    return Tree(
        tree.tokens, tree.parents, tree.weights, tuple(rng.randrange(8) for _ in tree.tokens)
    )


def of_costs(nodes: int, rng: random.Random) -> Sequence[float]:
    """Of passes with none, one, … of them; not monotone."""
    return [1.0 + 0.1 * rng.random() * count for count in range(nodes + 1)]


@needs_library
@given(st.lists(st.tuples(trees(weighted=None), said), max_size=12), st.integers(0, 99))
def test_both_decide_alike(rounds: list[tuple[Tree, list[int]]], seed: int) -> None:
    """Over several texts, of which the later ones inherit."""
    rng = random.Random(seed)
    sessions = new_calibration(40.0), portable(40.0)
    assert type(sessions[0]) is not type(sessions[1])
    texts = [session.begin(16.0, 8.0) for session in sessions]
    for tree, tokens in rounds:
        tree = by_several(tree, rng) if rng.random() < 0.7 else tree
        costs, sure = of_costs(len(tree), rng), rng.choice((1, 2))
        if rng.random() < 0.5:
            one, other = (text.expect(tree) for text in texts)
            assert one == other
        else:
            one, other = (text.choose(tree, sure, costs) for text in texts)
            assert one[0] == other[0]
            assert one[1] == pytest.approx(other[1], abs=1e-12)
        for text in texts:
            text.observe(tokens)
            if len(tokens) == 4:
                text.forget_trees()
        if rng.random() < 0.2:
            texts = [session.begin(16.0, 8.0) for session in sessions]


@needs_library
def test_both_decide_alike_for_long() -> None:
    """Deep trees that come true far down, and more tokens at once than the library is given."""
    rng = random.Random(0)
    texts = [session.begin(32.0, 8.0) for session in (new_calibration(400.0), portable(400.0))]
    for _ in range(120):
        tokens = [rng.randrange(3) for _ in range(rng.choice((1, 5, 90)))]
        depth = rng.randrange(90)
        weights = tuple(0.9**place for place in range(depth))
        tree = Tree(tuple([*tokens, *[1] * 90][:depth]), tuple(range(-1, depth - 1)), weights)
        costs = of_costs(depth, rng)
        chosen = [text.choose(tree, 1, costs) for text in texts]
        assert chosen[0][0] == chosen[1][0]
        for text in texts:
            text.observe(tokens)


def test_guesses_that_come_true_are_chosen(make: Make) -> None:
    text, tree = make(400.0).begin(32.0, 8.0), Tree((5, 6), (-1, -1), (0.3, 0.3))
    costs = [1.0, 1.2, 1.4]
    for _ in range(30):
        text.expect(tree)
        text.observe([5])
    first, second = text.expect(tree)
    assert first == second  # of one kind, half of which is right
    assert 0.35 < first < 0.65
    assert text.choose(tree, 1, costs)[0] == [0, 1]
    for _ in range(60):
        text.expect(tree)
        text.observe([7])
    nodes, promised = text.choose(tree, 1, costs)
    assert (nodes, promised) == ([], 0.0)


def test_nothing_comes_of_no_tree(make: Make) -> None:
    text = make(400.0).begin(32.0, 8.0)
    assert text.expect(EMPTY) == []
    assert text.choose(EMPTY, 1, [1.0]) == ([], 0.0)
    text.observe([1, 2])


def test_guesses_of_no_weight_promise_nothing(make: Make) -> None:
    text = make(400.0).begin(32.0, 8.0)
    tree = Tree((5, 6), (-1, 0), (0.9, 0.0))
    nodes, promised = text.choose(tree, 1, [1.0, 1.0, 0.5])
    assert nodes == [0, 1] and promised == pytest.approx(text.expect(tree)[0])


def test_trees_of_a_text_that_was_changed_are_forgotten(make: Make) -> None:
    """And what came true of them before is not."""
    texts, tree = [make(400.0).begin(32.0, 8.0) for _ in range(2)], Tree.chain([5, 6])
    for text in texts:
        for _ in range(30):
            text.expect(tree)
            text.observe([5])
            if text is texts[0]:
                text.forget_trees()
            text.observe([9])
    (first, second), (same, wrong) = (text.expect(tree) for text in texts)
    assert first > 0.9 and second > 0.45
    assert same > 0.9 and wrong < 0.15


def test_a_text_begins_with_what_others_have_shown(make: Make) -> None:
    session, tree = make(400.0), Tree((5,), (-1,), (0.5,), (1,))
    text = session.begin(32.0, 8.0)
    for _ in range(40):
        text.expect(tree)
        text.observe([5])
    (known,), (inherited,) = text.expect(tree), session.begin(32.0, 8.0).expect(tree)
    assert 0.5 < inherited < known


@needs_library
def test_a_calibration_can_be_used_after_an_interruption_anywhere() -> None:
    few, many = Tree.chain([5, 6]), Tree.chain(range(300))
    for interrupt in everywhere(module, tree_columns, buffer):
        text = new_calibration(400.0).begin(32.0, 8.0)
        text.expect(few)
        interrupt(lambda text=text: (text.expect(many), text.forget_trees()))
        assert len(text.expect(many)) == 300 and min(text.expect(many)) > 0
