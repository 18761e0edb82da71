"""LLMA against a naive search for the longest suffix of the output."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.helpers import unweighted

from paceline.datastore import GrowingSuffixArray
from paceline.drafters.llma import Llma
from paceline.drafters.lookup import copied_chain
from paceline.errors import UsageError
from paceline.records import Path, Round, TextStart
from paceline.tree import EMPTY, Tree

symbols = st.integers(0, 3)
texts = st.lists(symbols, max_size=20)
prompts = st.lists(symbols, min_size=1, max_size=20)
outputs = st.lists(symbols, max_size=12)


def places(sources: Sequence[Sequence[int]], output: Sequence[int], n: int) -> list[list[int]]:
    """What follows each place of the longest suffix of `output` (n tokens at least) that
    something follows, in the order of the sources."""
    for length in range(len(output), n - 1, -1):
        found = [
            list(source[end:])
            for source in sources
            for end in range(length, len(source))
            if list(source[end - length : end]) == list(output[-length:])
        ]
        if found:
            return found
    return []


def say(drafter: Llma, tokens: Sequence[int], at_once: int = 1) -> None:
    """Commit tokens, `at_once` per round."""
    for begin in range(0, len(tokens), at_once):
        said = tuple(tokens[begin : begin + at_once])
        path = Path(tuple(range(len(said) - 1)), said)
        drafter.observe(Round(0, Tree.chain(said[:-1]), torch.empty(0), path))


def first_of(
    sources: Sequence[Sequence[int]], output: Sequence[int], n: int, count: int
) -> list[int]:
    found = places(sources, output, n)
    return found[0][:count] if found else []


@given(
    st.lists(texts, max_size=3),
    prompts,
    outputs,
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(0, 10),
    st.integers(1, 4),
)
def test_a_copy_goes_on_where_the_longest_suffix_of_the_output_first_stands(
    references: list[list[int]],
    prompt: list[int],
    output: list[int],
    n: int,
    k: int,
    budget: int,
    at_once: int,
) -> None:
    drafter = Llma(n=n, k=k, tie="first")
    drafter.start(TextStart(prompt, references))
    say(drafter, output, at_once)
    expected = first_of([*references, prompt], output, n, min(k, budget))
    assert unweighted(drafter.propose(budget)) == Tree.chain(expected)


@pytest.mark.parametrize("n", [1, 40, 70])
@pytest.mark.parametrize("seed", range(4))
def test_long_matches_count_in_full(n: int, seed: int) -> None:
    """Of places that follow the same 32 tokens, the one is copied that follows the most."""
    rng = random.Random(seed)
    symbol = lambda: int(rng.random() < 0.03)  # noqa: E731
    references = [[symbol() for _ in range(rng.randrange(20, 150))] for _ in range(3)]
    output = [symbol() for _ in range(100)]
    drafter = Llma(n=n, k=5, tie="first")
    drafter.start(TextStart([5], references))
    for end in range(len(output)):
        expected = first_of(references, output[:end], n, 5)
        assert drafter.propose(64).tokens == tuple(expected)
        say(drafter, output[end : end + 1])


@given(st.lists(texts, max_size=3), prompts, outputs, st.integers(0, 50))
def test_a_random_copy_is_one_of_the_longest_matches(
    references: list[list[int]], prompt: list[int], output: list[int], seed: int
) -> None:
    drafter = Llma(seed=seed)
    drafter.start(TextStart(prompt, references))
    say(drafter, output)
    found = [tuple(tokens[:32]) for tokens in places([*references, prompt], output, 1)]
    assert drafter.propose(64).tokens in (found or [()])


def test_a_random_copy_is_any_of_the_matches_equally_often() -> None:
    references = [[7, 0], [5, 7, 1, 7, 2], [7, 3, 7]]  # 7 is followed by 0, 1, 2 and 3
    drawn: Counter[int] = Counter()
    for seed in range(2000):
        drafter = Llma(k=1, seed=seed)
        drafter.start(TextStart([9], references))
        say(drafter, [7])
        drawn[drafter.propose(64).tokens[0]] += 1
    assert sorted(drawn) == [0, 1, 2, 3]
    assert stats.chisquare(list(drawn.values())).pvalue > 1e-3


@pytest.mark.parametrize("tie", ["first", "random"])
def test_text_that_repeats_itself_takes_no_longer_than_other_text(
    tie: Literal["first", "random"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every place of a long run follows the same tokens."""
    looked: list[int] = []

    class Counted(np.ndarray[Any, Any]):
        def __getitem__(self, index: Any) -> Any:
            looked.append(len(index))
            return super().__getitem__(index)

    drafter = Llma(k=7, tie=tie)
    drafter.start(TextStart([9], [[1, *[5] * 20_000, 6]]))
    say(drafter, [5] * 300)
    whole = property(lambda self: self._tokens[: len(self)].view(Counted))
    monkeypatch.setattr(GrowingSuffixArray, "tokens", whole)
    assert drafter.propose(64).tokens[0] == 5
    assert max(looked) <= 1024 and sum(looked) < 200_000


@pytest.mark.parametrize("n", [1, 2])
def test_nothing_is_copied_before_any_output(n: int) -> None:
    """The output is matched, as in the paper, and not the end of the prompt."""
    drafter = Llma(n=n)
    drafter.start(TextStart([1, 2, 3, 1, 2], [[1, 2, 3, 4]]))
    assert drafter.propose(64) == EMPTY


@pytest.mark.parametrize("tie", ["first", "random"])
def test_a_copy_ends_with_its_reference(tie: str) -> None:
    drafter = Llma(tie="first" if tie == "first" else "random")
    drafter.start(TextStart([9, 9], [[1, 2, 3], [4, 5]]))
    say(drafter, [1])
    assert drafter.propose(64).tokens == (2, 3)
    say(drafter, [2, 3])  # nothing follows the last token of a reference
    assert drafter.propose(64) == EMPTY


def test_weights_are_those_of_the_match_that_is_copied() -> None:
    """The longest one, of three tokens, ends its reference: one token is what the copy rests on."""
    drafter = Llma(tie="first")
    drafter.start(TextStart([8], [[1, 2, 3], [9, 3, 5, 6]]))
    say(drafter, [1, 2, 3])
    assert drafter.propose(64) == copied_chain([5, 6], 1)


def test_a_match_does_not_cross_the_border_between_texts() -> None:
    drafter = Llma(n=2, tie="first")
    drafter.start(TextStart([8], [[1, 2], [3, 4, 5], [2, 3, 6]]))
    say(drafter, [2, 3])
    assert drafter.propose(64).tokens == (6,)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_match_shorter_than_the_threshold_copies_nothing(n: int) -> None:
    drafter = Llma(n=n, tie="first")
    drafter.start(TextStart([9], [[1, 2, 3, 4, 5]]))
    say(drafter, [8, 2, 3])  # two tokens match
    assert unweighted(drafter.propose(64)) == (Tree.chain([4, 5]) if n <= 2 else EMPTY)


def test_a_token_that_stands_nowhere_ends_the_match_and_the_next_begins_one() -> None:
    drafter = Llma(tie="first")
    drafter.start(TextStart([9], [[1, 2, 3, 4]]))
    say(drafter, [1, 2])
    assert drafter.propose(64).tokens == (3, 4)
    say(drafter, [77])
    assert drafter.propose(64) == EMPTY
    say(drafter, [2])
    assert drafter.propose(64).tokens == (3, 4)


@given(st.lists(texts, max_size=2), prompts, outputs, texts, outputs, st.integers(1, 3))
def test_the_next_turn_adds_what_is_new_as_a_text_of_its_own(
    references: list[list[int]],
    prompt: list[int],
    answer: list[int],
    question: list[int],
    output: list[int],
    n: int,
) -> None:
    drafter = Llma(n=n, tie="first")
    drafter.start(TextStart(prompt, references))
    say(drafter, answer)
    drafter.start(TextStart([*prompt, *answer, *question], references))
    assert drafter.propose(64) == EMPTY  # the match begins anew
    say(drafter, output)
    sources = [*references, prompt, [*answer, *question]]
    assert unweighted(drafter.propose(64)) == Tree.chain(first_of(sources, output, n, 32))


@pytest.mark.parametrize(
    ("second", "references"),
    [
        ([1, 2, 9], [[5, 6]]),  # diverges from the first prompt
        ([1, 2], [[5, 6]]),  # is shorter
        ([1, 2, 3, 4], [[5, 7]]),  # has other references
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 4], [[5, 6], [8]]),
    ],
)
def test_another_text_or_other_references_forget_the_old_ones(
    second: list[int], references: list[list[int]]
) -> None:
    drafter = Llma(tie="first")
    drafter.start(TextStart([1, 2, 3], [[5, 6]]))
    say(drafter, [4])
    drafter.start(TextStart(second, references))
    fresh = Llma(tie="first")
    fresh.start(TextStart(second, references))
    for token in (1, 2, 3, 5, 8):
        say(drafter, [token])
        say(fresh, [token])
        assert drafter.propose(64) == fresh.propose(64)


def test_references_that_the_caller_changes_between_turns_are_read_again() -> None:
    """The drafter must keep what it has read, not the caller's list: comparing a list with itself
    finds no difference."""
    drafter = Llma(tie="first")
    document = [5, 6]
    drafter.start(TextStart([1, 2], [document]))
    document[:] = [5, 7, 8]
    drafter.start(TextStart([1, 2, 3], [document]))
    say(drafter, [5])
    assert drafter.propose(64).tokens == (7, 8)


def test_the_kind_of_sequence_of_a_reference_does_not_matter() -> None:
    for reference in ([5, 6, 7], (5, 6, 7), range(5, 8)):
        drafter = Llma(tie="first")
        drafter.start(TextStart([1], [reference]))
        drafter.start(TextStart([1, 2], [reference]))
        say(drafter, [5])
        assert drafter.propose(64).tokens == (6, 7)


def test_the_same_seed_copies_the_same() -> None:
    def copies(seed: int) -> list[tuple[int, ...]]:
        drafter = Llma(k=1, seed=seed)
        drafter.start(TextStart([9], [[7, token] for token in range(40)]))
        found = []
        for _ in range(3):
            say(drafter, [7])
            found.append(drafter.propose(64).tokens)
        return found

    assert copies(3) == copies(3)
    assert len({tuple(copies(seed)) for seed in range(10)}) > 5


@pytest.mark.parametrize(
    ("reference", "problem"),
    [([3, -1], "token ids must be at least 0"), ([3, 1 << 31], "does not fit into 32 bits")],
)
def test_ids_that_no_vocabulary_has_are_refused(reference: list[int], problem: str) -> None:
    drafter = Llma()
    for _ in range(2):  # nothing of it is taken for known afterwards
        with pytest.raises(UsageError, match=problem):
            drafter.start(TextStart([1], [[2], reference]))


def test_an_unknown_tie_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="tie must be one of random, first, got 'last'"):
        Llma(tie="last")
