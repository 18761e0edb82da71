"""Every drafter under constraints, against plain decoding; what becomes of its guesses."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.automata import Automaton, held_stream, random_table
from tests.helpers import Hostile, RandomTrees, hostile_drafters, play, token_paths, trees
from tests.prompt_parts import toy_drafter

from paceline.drafters import METHODS
from paceline.errors import UsageError
from paceline.loop import Generation
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter
from paceline.records import SourceRound
from paceline.sampling import Sampler
from paceline.scout import GRAMMAR, Scout
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, Tree
from paceline.typical import Typical

PROMPT = [3, 1, 4, 1, 5]
LENGTH = 40
VARIANTS = [*METHODS, "auto:sources=pld+anpd", "ppd 4x2", "speculative:draft=near,length=3"]
HOSTILE = list(hostile_drafters([0]))
LINE = [{token: token + 1} for token in range(9)]
"""0, 1, 2, … 8 and nothing else."""


def sampler_at(temperature: float) -> Sampler:
    return Sampler(seed=11, temperature=temperature)


@cache
def reference(seed: int, temperature: float) -> list[int]:
    automaton = Automaton(random_table(seed))
    return held_stream(ToyTarget(), PROMPT, LENGTH, automaton, sampler_at(temperature))


def drafter_of(name: str, story: list[int]) -> Drafter:
    return hostile_drafters(story)[name]() if name in HOSTILE else toy_drafter(name)


def held(
    drafter: Drafter, matcher: Any, temperature: float = 0.0, limit: int = LENGTH, **fields: Any
) -> Generation:
    stopping = Stopping(limit, (), [matcher.push])
    sampler = sampler_at(temperature)
    return Generation(PROMPT, drafter, stopping, sampler, matcher=matcher, **fields)


class Silent(Hostile):
    """Never guesses, and takes what a constraint guesses."""

    def propose(self, budget: int) -> Tree:
        return EMPTY


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", [*VARIANTS, *HOSTILE])
def test_every_drafter_writes_the_text_of_plain_decoding(name: str, temperature: float) -> None:
    for seed, budget in ((0, 1), (1, 7), (0, 64)):
        text = reference(seed, temperature)
        one = held(drafter_of(name, [*PROMPT, *text]), Automaton(random_table(seed)), temperature)
        play(ToyTarget(), [one], budget)
        assert one.output == text, (seed, budget)


@pytest.mark.parametrize("name", [*VARIANTS, "oracle", "random trees"])
def test_a_batch_with_planned_trees_writes_the_same_texts(name: str) -> None:
    curve = CostCurve((CostPoint(1, 64, 10.0), CostPoint(33, 64, 14.0)))
    texts = [
        held(drafter_of(name, [*PROMPT, *reference(seed, 0.9)]), Automaton(random_table(seed)), 0.9)
        for seed in range(5)
    ]
    play(ToyTarget(), texts, TreePlanner(curve))
    assert [text.output for text in texts] == [reference(seed, 0.9) for seed in range(5)]


def test_the_texts_under_test_are_held_and_end_in_several_ways() -> None:
    found = [reference(seed, 0.9) for seed in range(6)]
    assert {len(text) == LENGTH for text in found} == {True, False}
    free = held_stream(
        ToyTarget(), PROMPT, 12, Automaton([dict.fromkeys(range(16), 0)]), sampler_at(0.9)
    )
    assert all(text[:12] != free for text in found)


def test_forced_tokens_are_guesses_of_a_source_of_their_own() -> None:
    text = held(Silent(), Automaton([*LINE, {}]))
    (rounds,) = play(ToyTarget(), [text])
    assert text.output == list(range(9))
    assert len(rounds) == 1
    assert [source.name for source in rounds[0].sources] == [GRAMMAR]
    assert rounds[0].proposers(0) == (GRAMMAR,)
    assert text.stopping.reason == "stop"
    short = held(Silent(), Automaton([*LINE, {}]), limit=4)
    short.fit(ToyTarget())
    assert short.complete(EMPTY).tokens == (0, 1, 2), "nothing beyond the limit"


def test_plain_decoding_and_a_budget_of_nothing_guess_nothing() -> None:
    for text in (held(toy_drafter("plain"), Automaton([*LINE, {}])),):
        (rounds,) = play(ToyTarget(), [text])
        assert [len(round.tree) for round in rounds] == [0] * 9
    text = held(Silent(), Automaton([*LINE, {}]), budget=0)
    (rounds,) = play(ToyTarget(), [text], TreePlanner())
    assert [len(round.tree) for round in rounds] == [0] * 9


def test_forced_tokens_are_guessed_while_the_planner_lets_the_drafter_rest() -> None:
    """Its guesses never come true and are costly."""
    curve = CostCurve((CostPoint(1, 64, 1.0), CostPoint(9, 64, 1.2), CostPoint(33, 64, 1.6)))
    branches: dict[int, int] = dict.fromkeys(range(16), 1)
    line = [{token % 16: token + 1} for token in range(1, 7)]
    table = [branches, *line, {3: 0}]
    texts = {}
    for method in ("silent", "plain"):
        drafter = Silent() if method == "silent" else toy_drafter("plain")
        texts[method] = held(drafter, Automaton(table), limit=400)
        (rounds,) = play(ToyTarget(), [texts[method]], TreePlanner(curve))
        gained = texts[method].stopping, len(rounds)
        assert gained[0].reason == "length"
    assert texts["silent"].output == texts["plain"].output
    assert len(rounds) == 400
    (rounds,) = play(ToyTarget(), [held(Silent(), Automaton(table), limit=400)], TreePlanner(curve))
    assert len(rounds) < 150


@given(trees(max_size=14, vocab_size=5, weighted=None), st.integers(0, 40), st.integers(1, 30))
def test_admitted_trees_hold_the_allowed_guesses_and_what_is_forced(
    tree: Tree, seed: int, most: int
) -> None:
    matcher = Automaton(random_table(seed, vocab_size=5), 5)
    scout = Scout(matcher, 2)
    found = scout.admit(tree, 1000)
    assert matcher.states == [0]
    assume(len(found) < 1000)  # else the text is forced in a circle
    paths = set(token_paths(found))
    assert len(paths) == len(found)
    for path in paths:
        assert allows(seed, path)
    for path in token_paths(tree):
        # What hangs below the second of two equal siblings is never walked.
        if tree.find(path) is not None:
            assert (path in paths) == allows(seed, path)
    forced = tuple(matcher.forced())
    assert not forced or forced in paths
    assert len(scout.admit(tree, most)) <= most
    if found.weights is not None:
        path_chances = (*found.weights, 1.0)
        assert all(
            path_chances[node] <= path_chances[parent] for node, parent in enumerate(found.parents)
        )


def allows(seed: int, path: tuple[int, ...]) -> bool:
    matcher = Automaton(random_table(seed, vocab_size=5), 5)
    return all(matcher.enter(token) for token in path)


def test_weights_of_guesses_below_forced_tokens_are_those_of_the_guess_alone() -> None:
    """A drafter that thinks little of the forced token may be sure of what follows it."""
    tree = Tree((7, 2, 3), (-1, 0, 0), (0.1, 0.08, 0.02), (1, 1, 1))
    table = [{7: 1}, {2: 2, 3: 2}, {}]
    found = Scout(Automaton(table), 1).admit(tree, 9)
    assert found.tokens == (7, 2, 3)
    assert found.weights == pytest.approx((1.0, 0.8, 0.2))
    assert found.sources == (0b11, 0b01, 0b01)


def test_what_is_likely_is_guessed_beside_the_drafter_and_where_it_says_nothing() -> None:
    table = [dict.fromkeys((5, 7), 1), dict.fromkeys((5, 8), 2), {5: 3, 9: 3}, {}]
    matcher = Automaton(table)
    matcher.habit = (5, 0.6)
    found = Scout(matcher, 1).admit(Tree((7, 8), (-1, 0), (0.3, 0.24), (1, 1)), 9)
    assert matcher.states == [0]
    assert set(token_paths(found)) == {(5,), (5, 5), (5, 5, 5), (7,), (7, 8), (7, 8, 5)}
    assert found.find((7, 5)) is None  # the drafter is sure enough there
    weights = dict(zip(token_paths(found), found.weights or ()))
    assert weights[5, 5] == pytest.approx(0.36)
    assert weights[7, 8, 5] == pytest.approx(0.24 * 0.6)
    assert Scout(matcher, 1).forced(9) == EMPTY


def test_likely_guesses_are_not_looked_for_without_end() -> None:
    matcher = Automaton([dict.fromkeys((5, 7), 0)])
    matcher.habit = (5, 0.99)
    assert 5 < len(Scout(matcher, 0).admit(EMPTY, 1000)) < 20
    assert len(Scout(matcher, 0).admit(EMPTY, 3)) == 3


@pytest.mark.parametrize("name", ["anpd", "random trees", "oracle"])
def test_likely_guesses_right_or_wrong_change_no_text(name: str) -> None:
    for seed in range(4):
        matcher = Automaton(random_table(seed))
        matcher.habit = (seed * 3 % 16, 0.9)
        text = held(drafter_of(name, [*PROMPT, *reference(seed, 0.9)]), matcher, 0.9)
        play(ToyTarget(), [text], 16)
        assert text.output == reference(seed, 0.9)


def test_trees_that_stay_whole_keep_their_nodes_in_their_places() -> None:
    tree = Tree((9, 0, 99, 1), (-1, -1, 1, 1))
    found = Scout(Automaton([*LINE, {}]), 0).extend(tree, 6)
    assert found.tokens == (9, 0, 99, 1, 2, 3)
    assert found.parents == (-1, -1, 1, 1, 3, 4)
    assert found.sources == (0, 0, 0, 0, 1, 1)
    assert Scout(Automaton([*LINE, {}]), 0).extend(tree, 4) is tree


class PanicError(BaseException):
    """As of a library in Rust."""


class Fragile(Automaton):
    """Fails when something is supposed for the n-th time, or drawn for the n-th time."""

    def __init__(self, table: Any, enters: int = 10**9, pushes: int = 10**9) -> None:
        super().__init__(table)
        self.enters, self.pushes = enters, pushes

    def enter(self, token: int) -> bool:
        self.enters -= 1
        if self.enters < 0:
            raise PanicError("too complex")
        return super().enter(token)

    def push(self, token: int) -> bool:
        self.pushes -= 1
        if self.pushes < 0:
            raise UsageError("the constraint failed: too complex")
        return super().push(token)


@pytest.mark.parametrize("enters", [0, 1, 5, 20])
def test_what_goes_wrong_with_guesses_does_not_end_the_text(enters: int) -> None:
    for seed in range(6):
        text = held(RandomTrees(), Fragile(random_table(seed), enters=enters))
        play(ToyTarget(), [text])
        assert text.output == reference(seed, 0.0)


def test_a_matcher_that_fails_ends_its_text_alone() -> None:
    texts = [
        held(RandomTrees(), Fragile(random_table(seed), pushes=3 if seed == 1 else 10**9))
        for seed in range(3)
    ]
    with pytest.raises(UsageError, match="too complex"):
        play(ToyTarget(), texts)
    assert texts[1].stopping.reason == "error"
    assert texts[1].output == reference(1, 0.0)[: len(texts[1].output)]
    assert [texts[seed].output for seed in (0, 2)] == [reference(0, 0.0), reference(2, 0.0)]


def test_stop_conditions_hear_what_is_drawn_and_nothing_else() -> None:
    heard, too = list[int](), list[int]()
    matcher = Automaton([*LINE, {}])

    def third(token: int) -> bool:
        heard.append(token)
        return len(heard) == 3

    def other(token: int) -> bool:
        too.append(token)
        return False

    conditions = [third, matcher.push, other]
    text = Generation(PROMPT, Silent(), Stopping(LENGTH, (), conditions), matcher=matcher)
    play(ToyTarget(), [text])
    assert text.output == heard == too == [0, 1, 2]
    assert text.stopping.reason == "stop"


def test_typical_acceptance_refuses_a_constraint() -> None:
    with pytest.raises(UsageError, match="constraint"):
        held(RandomTrees(), Automaton([*LINE, {}]), 0.8, typical=Typical())


def test_drafters_hear_of_paths_through_trees_that_were_cut() -> None:
    """Random trees under random automata, whose rounds must tell one story."""
    rng = random.Random(5)
    for _ in range(30):
        seed, beyond = rng.randrange(99), rng.choice([0, 4])
        text = held(RandomTrees(seed=seed, beyond=beyond), Automaton(random_table(seed % 6)))
        (rounds,) = play(ToyTarget(), [text], rng.choice([3, 20]))
        assert text.output == reference(seed % 6, 0.0)
        for round in rounds:
            assert isinstance(round.sources[-1], SourceRound)
            assert round.sources[-1].name == GRAMMAR
