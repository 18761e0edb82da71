"""ANPD against recounting the whole text with every question."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import token_paths, unweighted
from tests.ngram_sizes import sizes

from paceline.drafters import Host, make_drafter
from paceline.drafters.anpd import Anpd
from paceline.drafters.lookup import follower_confidence
from paceline.drafters.ngrams import NGramTable
from paceline.errors import UsageError
from paceline.records import Path, Round, TextStart
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, ROOT, Tree

# Two to four symbols make many repeats and ties; 0 and 1 are among them, as ordinary ids.
texts = st.integers(2, 4).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), min_size=1, max_size=40)
)
Follower = tuple[int, int]  # a place in a text, and the order of being seen


def seen_in(text: Sequence[int], new_from: int = 0) -> list[tuple[Sequence[int], int]]:
    """Every place of `text` where a token was seen to follow something, in order."""
    return [(text, place) for place in range(max(new_from, 1), len(text))]


def recount(
    seen: Sequence[tuple[Sequence[int], int]], tail: Sequence[int], n: int, branches: int
) -> list[int]:
    """The best followers of the longest run at the end of `tail` that was followed before."""
    for run in range(min(n - 1, len(tail)), 0, -1):
        counts: dict[int, int] = {}
        last: dict[int, int] = {}
        for moment, (text, place) in enumerate(seen):
            if place >= run and list(text[place - run : place]) == list(tail[-run:]):
                counts[text[place]] = counts.get(text[place], 0) + 1
                last[text[place]] = moment
        if counts:
            # The most frequent first; of equally frequent ones, the one seen last.
            return sorted(counts, key=lambda token: (-counts[token], -last[token]))[:branches]
    return []


def redraft(
    seen: Sequence[tuple[Sequence[int], int]], text: Sequence[int], n: int, depth: int
) -> list[tuple[int, ...]]:
    """Paths of all nodes of the chain of best followers."""
    paths: list[tuple[int, ...]] = []
    path: tuple[int, ...] = ()
    while len(path) < depth and (found := recount(seen, [*text, *path], n, 1)):
        path = (*path, found[0])
        paths.append(path)
    return paths


def all_paths(
    text: Sequence[int], n: int, depth: int, branches: int
) -> dict[tuple[int, ...], float]:
    """Every path of the best followers with how likely it is, by counting the whole text."""
    weights: dict[tuple[int, ...], float] = {(): 1.0}
    for path in (path for size in range(depth) for path in [*weights] if len(path) == size):
        tail = [*text, *path]
        for token in recount(seen_in(text), tail, n, branches):
            for run in range(min(n - 1, len(tail)), 0, -1):
                places = [
                    end for end in range(run, len(text)) if text[end - run : end] == tail[-run:]
                ]
                if places:
                    right = sum(text[end] == token for end in places)
                    share = follower_confidence(run, right, len(places))
                    weights[*path, token] = weights[path] * share
                    break
    del weights[()]
    return weights


def recount_one_level(text: Sequence[int], tail: Sequence[int], n: int, branches: int) -> list[int]:
    """The best followers of the last n - 1 tokens of `tail`, whole or not at all."""
    run = tuple(tail[len(tail) - n + 1 :]) if len(tail) >= n - 1 else None
    followers = [
        text[place]
        for place in range(n - 1, len(text))
        if tuple(text[place - n + 1 : place]) == run
    ]
    last = {token: place for place, token in enumerate(followers)}
    return sorted(last, key=lambda t: (-followers.count(t), -last[t]))[:branches]


def commit(drafter: Anpd, *tokens: int) -> None:
    """A round in which all tokens but the last were right guesses."""
    nodes = tuple(range(len(tokens) - 1))
    drafter.observe(Round(0, Tree.chain(tokens[:-1]), torch.empty(0), Path(nodes, tokens)))


def started(
    context: Sequence[int], references: Sequence[Sequence[int]] = (), **settings: Any
) -> Anpd:
    drafter = Anpd(**settings)
    drafter.start(TextStart(context, references))
    return drafter


def best_followers(drafter: Anpd, tail: Sequence[int]) -> list[int]:
    """What the drafter guesses after `tail`, best first."""
    tables = drafter._ngrams, drafter._reference_ngrams
    return list(tables[0].draft(tuple(tail), 99, 1, tables[1]).tokens)


@given(texts, st.integers(2, 6), st.integers(1, 4), st.lists(st.integers(0, 3), max_size=6))
def test_a_draft_of_one_token_finds_the_most_frequent_followers_of_the_longest_known_run(
    text: list[int], n: int, branches: int, tail: list[int]
) -> None:
    drafter = started(text, n=n, branches=branches)
    for asked in (tail, text[len(text) // 2 :] + tail):
        assert best_followers(drafter, asked) == recount(seen_in(text), asked, n, branches)


@given(texts, st.integers(2, 6), st.integers(1, 8))
def test_a_draft_is_the_chain_of_best_followers(text: list[int], n: int, k: int) -> None:
    tree = started(text, n=n, k=k, branches=1).propose(64)
    assert unweighted(tree) == Tree.chain(tree.tokens)
    assert token_paths(tree) == redraft(seen_in(text), text, n, k)


@given(texts, st.integers(2, 5), st.integers(1, 3), st.integers(1, 4), st.integers(1, 20))
def test_a_draft_holds_the_likeliest_nodes_branches_included(
    text: list[int], n: int, k: int, branches: int, budget: int
) -> None:
    tree = started(text, n=n, k=k, branches=branches).propose(budget)
    expected = all_paths(text, n, k, branches)
    paths = token_paths(tree)
    assert len(set(paths)) == len(paths)  # no equal siblings
    weights = list(tree.weights or ())
    assert weights == pytest.approx([expected[path] for path in paths])
    assert weights == pytest.approx(sorted(expected.values(), reverse=True)[:budget])


def test_a_likely_branch_comes_before_the_end_of_an_unlikely_path() -> None:
    """7 is followed by 1 and by 2 again and again, and each of them by something else each time."""
    text = [token for step in range(8) for token in (7, 1 + step % 2, 20 + step, 30 + step)]
    tree = started([*text, 7]).propose(6)
    assert {tree.tokens[node] for node in tree.children[ROOT].values()} == {1, 2}
    assert tree.depths[:2] == (1, 1)


@given(texts, st.integers(1, 8), st.integers(1, 3), st.integers(0, 20))
def test_a_smaller_budget_keeps_the_first_nodes(
    text: list[int], k: int, branches: int, budget: int
) -> None:
    drafter = started(text, k=k, branches=branches)
    whole, part = drafter.propose(1000), drafter.propose(budget)
    assert len(part) == min(budget, len(whole))
    assert part.tokens == whole.tokens[:budget]
    assert part.parents == whole.parents[:budget]
    assert max(whole.depths, default=0) <= k


@given(texts, st.integers(2, 6), st.integers(1, 3), st.lists(st.integers(0, 3), max_size=6), texts)
def test_one_level_asks_runs_of_one_length_alone(
    prompt: list[int], n: int, branches: int, tail: list[int], committed: list[int]
) -> None:
    drafter = started(prompt, n=n, branches=branches, levels="one")
    commit(drafter, *committed)
    text = prompt + committed
    for asked in (tail, text + tail):
        assert best_followers(drafter, asked) == recount_one_level(text, asked, n, branches)


@given(texts, st.integers(2, 6))
def test_a_draft_of_one_level_ends_at_its_first_miss(text: list[int], n: int) -> None:
    draft: list[int] = []
    while len(draft) < 7 and (found := recount_one_level(text, [*text, *draft], n, 1)):
        draft += found
    assert unweighted(started(text, n=n, k=7, branches=1, levels="one").propose(64)) == Tree.chain(
        draft
    )


@given(texts, st.lists(st.integers(0, 3), max_size=6))
def test_bigrams_have_one_level_only(text: list[int], tail: list[int]) -> None:
    one, every = started(text, n=2, levels="one"), started(text, n=2)
    assert best_followers(one, tail) == best_followers(every, tail)
    assert one.propose(64) == every.propose(64)


def knows_the_same(one: Anpd, other: Anpd, symbols: int = 4, longest: int = 4) -> bool:
    tails = (
        tail for size in range(1, longest + 1) for tail in product(range(symbols), repeat=size)
    )
    return all(best_followers(one, tail) == best_followers(other, tail) for tail in tails)


@given(texts, st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=6))
def test_committed_tokens_are_learned_as_if_they_had_stood_in_the_prompt(
    prompt: list[int], rounds: list[list[int]]
) -> None:
    drafter = started(prompt, n=4, branches=2)
    text = list(prompt)
    for tokens in rounds:
        commit(drafter, *tokens)
        text += tokens
        fresh = started(text, n=4, branches=2)
        assert drafter.propose(50) == fresh.propose(50)
    assert knows_the_same(drafter, started(text, n=4, branches=2), longest=3)


@pytest.mark.parametrize("persist", [False, True])
@given(texts, st.lists(st.integers(0, 3), min_size=1, max_size=8), texts)
def test_a_next_turn_counts_nothing_twice(
    persist: bool, prompt: list[int], output: list[int], question: list[int]
) -> None:
    drafter = started(prompt, n=4, branches=2, persist=persist)
    commit(drafter, *output)
    conversation = [*prompt, *output, *question]
    drafter.start(TextStart(conversation))
    fresh = started(conversation, n=4, branches=2)
    assert knows_the_same(drafter, fresh, longest=3)
    assert drafter.propose(50) == fresh.propose(50)
    drafter.start(TextStart(conversation))
    assert knows_the_same(drafter, fresh, longest=3)


@given(texts, texts)
def test_another_text_begins_with_empty_tables(first: list[int], second: list[int]) -> None:
    drafter = started(first, n=4, branches=2)
    drafter.start(TextStart(second))
    assert knows_the_same(drafter, started(second, n=4, branches=2), longest=3)


@given(texts, texts, st.integers(2, 4), st.integers(1, 3))
def test_persisting_tables_hold_all_texts_and_a_common_beginning_once(
    first: list[int], second: list[int], n: int, branches: int
) -> None:
    drafter = started(first, n=n, branches=branches, persist=True)
    drafter.start(TextStart(second))
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    seen = seen_in(first) + seen_in(second, common)
    for size in range(1, n):
        for tail in product(range(4), repeat=size):
            assert best_followers(drafter, tail) == recount(seen, tail, n, branches)
    assert token_paths(drafter.propose(500)) != [] or recount(seen, second, n, branches) == []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 3))
def test_no_id_is_special(text: list[int], branches: int) -> None:
    """The official code pads with 0 and 1: renaming all ids must rename the draft and no more."""
    names = [101, 57, 3000, 12]
    plain = started(text, branches=branches).propose(40)
    renamed = started([names[token] for token in text], branches=branches).propose(40)
    assert renamed.tokens == tuple(names[token] for token in plain.tokens)
    assert renamed.parents == plain.parents


@pytest.mark.parametrize("token", [0, 1])
def test_runs_of_the_ids_zero_and_one_are_drafted(token: int) -> None:
    assert unweighted(started([token] * 4, k=5).propose(64)) == Tree.chain([token] * 5)


def test_the_longest_run_wins_over_the_more_frequent_follower() -> None:
    text = [1, 2, 9, 5, 2, 7, 5, 2, 7, 5, 2, 7, 1, 2]
    assert started(text, n=2, k=1, branches=1).propose(9).tokens == (7,)
    assert started(text, n=3, k=1).propose(9).tokens == (9,)


def test_of_equally_frequent_followers_the_one_seen_last_comes_first() -> None:
    drafter = started([5, 1, 5, 2, 5, 3, 5], n=2, branches=3)
    assert best_followers(drafter, [5]) == [3, 2, 1]
    commit(drafter, 1, 5)
    assert best_followers(drafter, [5]) == [1, 3, 2]


@pytest.mark.parametrize("text", [[4], [4, 5], [0, 1, 2, 3], [1, 1, 0]])
def test_a_last_token_that_was_never_followed_ends_the_draft(text: list[int]) -> None:
    assert started(text, branches=3).propose(64) == EMPTY


def test_a_fresh_drafter_that_was_never_started_proposes_nothing() -> None:
    assert Anpd().propose(64) == EMPTY


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4))
def test_a_table_keeps_the_most_frequent_ones_although_it_keeps_few(
    followers: list[int], width: int
) -> None:
    """One that fell out of the best must come back once it is frequent enough."""
    table = NGramTable(2, width)
    for moment, token in enumerate(followers):
        table.count((7,), token)
        so_far = followers[: moment + 1]
        ranked = sorted(
            set(so_far),
            key=lambda t: (-so_far.count(t), -max(i for i, f in enumerate(so_far) if f == t)),
        )
        assert list(table.followers((7,))[1::2]) == ranked[:width]
    assert table.followers((8,)) == ()


def test_a_long_text_drafts_as_its_recount_does() -> None:
    rng = random.Random(0)
    text = [rng.choice([0, 0, 1, 2]) for _ in range(400)]
    drafter = started(text[:100], n=5, k=7, branches=1)
    for place in range(100, 400, 60):
        assert token_paths(drafter.propose(99)) == redraft(
            seen_in(text[:place]), text[:place], 5, 7
        )
        commit(drafter, *text[place : place + 60])


# ---- references ----

DOCUMENT = list(range(100, 160))


def test_an_answer_that_stands_in_a_reference_is_accepted_in_long_paths() -> None:
    drafter, text, rounds = started([1, 2, 3, 100], references=[DOCUMENT]), [100], 0
    while len(text) < len(DOCUMENT):
        tree, right = drafter.propose(16), DOCUMENT[len(text) :]
        accepted = max(
            (len(path) for path in token_paths(tree) if path == tuple(right[: len(path)])),
            default=0,
        )
        said = right[: accepted + 1]
        commit(drafter, *said)
        text += said
        rounds += 1
    assert rounds <= 4  # of sixteen guesses each


@given(texts, st.lists(texts, max_size=3), st.lists(st.integers(0, 5), max_size=6))
def test_references_are_asked_only_where_the_text_knows_nothing(
    text: list[int], references: list[list[int]], tail: list[int]
) -> None:
    drafter = started(text, n=4, branches=2, references=references)
    own = recount(seen_in(text), tail, 4, 2)
    theirs = recount([place for one in references for place in seen_in(one)], tail, 4, 2)
    assert best_followers(drafter, tail) == (own or theirs)


@pytest.mark.parametrize("persist", [False, True])
def test_references_do_not_leak_into_another_text(persist: bool) -> None:
    drafter = started([1, 2, 100], references=[DOCUMENT], persist=persist)
    assert drafter.propose(3).tokens == (101, 102, 103)
    drafter.start(TextStart([1, 2, 100]))
    assert drafter.propose(3) == EMPTY
    drafter.start(TextStart([5, 100], [[100, 6, 7]]))
    assert drafter.propose(9).tokens == (6, 7)
    drafter.start(TextStart([8, 100]))
    assert drafter.propose(9) == EMPTY


def test_the_next_turn_does_not_count_the_same_references_again() -> None:
    drafter = started([1, 2, 3], references=[DOCUMENT])
    before = drafter._reference_ngrams
    drafter.start(TextStart([1, 2, 3, 4, 5], [tuple(DOCUMENT)]))
    assert drafter._reference_ngrams is before
    assert sizes(drafter._reference_ngrams)[0] == len(DOCUMENT) - 1
    assert sizes(drafter._ngrams) == [4, 3, 2, 1, 0]
    assert best_followers(drafter, [104]) == [105]


# ---- limits ----


def test_tables_that_persist_over_many_texts_stay_within_their_limit() -> None:
    rng = random.Random(1)
    drafter = started([0], n=3, persist=True, most=1024)
    for _ in range(40):
        drafter.start(TextStart([rng.randrange(500) for _ in range(100)]))
        assert max(sizes(drafter._ngrams)) <= 1024
    assert min(sizes(drafter._ngrams)) > 256
    last = drafter._text
    assert (
        best_followers(drafter, last[-3:-1])[0] == last[-1]
    )  # what was counted last is still known


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="most must be a whole number >= 1024, got 1000"):
        Anpd(most=1000)


def test_tables_that_persist_are_those_of_the_whole_session() -> None:
    host = Host(ToyTarget())
    one, other = (make_drafter("anpd:n=3,persist=true", host) for _ in range(2))
    one.start(TextStart([1, 2, 3, 4, 5]))
    other.start(TextStart([9, 2, 3]))
    assert other.propose(2).tokens == (4, 5)
