"""Jacobi decoding against the iteration itself, written with a fresh pass for every token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.helpers import as_walked, generate, naive_stream
from tests.one_pass import one_pass

from paceline.drafters import Jacobi
from paceline.records import Round, TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.tree import Tree
from paceline.verify import walk

PROMPT = [3, 1, 4, 1, 5]
WARM = Sampler(seed=11, temperature=1.0)


def says(target: ToyTarget, text: Sequence[int]) -> int:
    return int(one_pass(target, text)[0].argmax())


def scored(drafter: Jacobi, target: ToyTarget, text: list[int], cut: int = 99) -> list[int]:
    """Play one round, of which `cut` guesses are scored, and return the next guesses."""
    tree = drafter.propose(64).clip(cut)
    rows = one_pass(target, text, tree)
    path = walk(tree, rows, GREEDY, text, Stopping(99))
    drafter.observe(Round(0, tree, rows, path))
    text += path.tokens
    return list(drafter.propose(64).tokens)


@pytest.mark.parametrize("cut", [99, 3, 1, 0])
@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_every_guess_is_what_the_target_says_after_the_guesses_of_the_pass_before(
    length: int, cut: int
) -> None:
    target, other = ToyTarget(6, order=4), ToyTarget(6, order=4)
    drafter = Jacobi(length=length)
    drafter.start(TextStart(PROMPT))
    text = list(PROMPT)
    before = list(drafter.propose(64).tokens)
    assert len(before) == length and set(before) <= set(PROMPT)
    for _ in range(25):
        old = list(text)
        guesses = scored(drafter, target, text, cut)
        seen = min(length, cut)
        # Known: what was said after the root and the scored guesses; then those without a row.
        after = [says(other, [*old, *before[:count]]) for count in range(seen + 1)]
        expected = [*after, *before[seen + 1 :]][len(text) - len(old) :]
        assert guesses[: len(expected)] == expected
        assert len(guesses) == length and set(guesses[len(expected) :]) <= set(PROMPT)
        before = guesses
    assert text[len(PROMPT) :] == naive_stream(other, PROMPT, len(text) - len(PROMPT))


class Clock(ToyTarget):
    """A model whose next token depends on nothing but its place."""

    def _score_one(self, slot: Any, tree: Tree) -> torch.Tensor:
        context = [*slot.cached, *slot.pending]
        places = [len(context) + depth for depth in (0, *tree.depths)]
        return torch.eye(self.vocab_size)[[place % self.vocab_size for place in places]]


@pytest.mark.parametrize("length", [1, 4, 10])
def test_equations_that_do_not_depend_on_one_another_are_solved_in_one_pass(length: int) -> None:
    """And accepted in the next one, of which nothing is known but what its last row says."""
    _, rounds, _ = generate(Clock(7), Jacobi(length=length), [0, 0, 0], 60)
    gained = [len(round.path.tokens) for round in rounds[:-1]]
    assert all(one + other >= length + 2 for one, other in pairwise(gained))


def test_a_text_that_stands_still_is_guessed_whole() -> None:
    """All roads lead to the token that follows itself."""
    target = next(
        toy
        for toy in (ToyTarget(4, order=1, seed=seed) for seed in range(100))
        if len({tuple(naive_stream(toy, [token], 9)[5:]) for token in range(4)}) == 1
        and len(set(naive_stream(toy, [0], 9)[5:])) == 1
    )
    _, rounds, _ = generate(target, Jacobi(length=6), [0, 1, 2, 3], 60)
    assert len(rounds) <= 24


@pytest.mark.parametrize("sampler", [GREEDY, WARM], ids=["greedy", "warm"])
def test_the_text_goes_on_otherwise_and_guesses_keep_their_places(sampler: Sampler) -> None:
    drafter, target, text = Jacobi(length=5), ToyTarget(), list(PROMPT)
    drafter.start(TextStart(text))
    for _ in range(6):
        guesses = scored(drafter, target, text)
    whole = [*text, *guesses]
    for context in (
        [*text, 9, 9],  # two tokens more
        [*text[:-2], 9],  # one less, and another one
        text[:-3],
        [*text, *[9] * 20],  # beyond all guesses
        text,
    ):
        drafter.resume(TextStart(context))
        known = whole[len(context) : len(context) + 5]
        now = list(drafter.propose(64).tokens)
        assert now[: len(known)] == known and len(now) == 5
        assert set(now[len(known) :]) <= set(PROMPT)
        whole = [*context, *now]
    output, _, _ = generate(target, drafter, PROMPT, 20, sampler=sampler)
    assert output == naive_stream(target, PROMPT, 20, sampler)


def test_the_same_prompt_makes_the_same_trees_whatever_came_before() -> None:
    first, second = Jacobi(), Jacobi()
    generate(ToyTarget(), second, [9, 9, 8, 7, 9], 30)
    state = random.getstate()
    seen = [
        as_walked(generate(ToyTarget(), drafter, PROMPT, 30)[1])
        for drafter in (first, second, first)
    ]
    assert seen[0] == seen[1] == seen[2] and random.getstate() == state
    assert as_walked(generate(ToyTarget(), Jacobi(seed=1), PROMPT, 30)[1]) != seen[0]
