"""Ouroboros's own parts: phrases from verification, and what hangs after a draft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.draft_hosts import toy_host
from tests.helpers import generate

from paceline.drafters import Ouroboros, OuroborosSettings, PhrasePool, make_drafter
from paceline.drafters.lookahead import Lookahead, LookaheadSettings
from paceline.drafters.verified_phrases import Verified, corrected, matching, refined
from paceline.errors import ModelError, UsageError
from paceline.loop import Generation, decode
from paceline.records import Path, Round, TextStart
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.tree import Tree

VOCAB = 30


def verified(draft: Sequence[int], outputs: Sequence[int]) -> Verified:
    """Of a draft after token 0 whose nodes the target answers with `outputs`."""
    logits = torch.nn.functional.one_hot(torch.tensor(list(outputs)), VOCAB).float()
    right = 0
    while right < len(draft) and outputs[right] == draft[right]:
        right += 1
    path = Path(tuple(range(right)), tuple(outputs[: right + 1]))
    return Verified.of(Round(0, Tree.chain(list(draft)), logits, path), 0, draft, [])


def test_runs_that_go_along_with_the_rejected_draft_become_phrases() -> None:
    # After the root and after 3 4 5 6 7 the target says 3 9 5 6 7 8: the draft is right by one
    # token, then shifted ones go along.
    seen = verified([3, 4, 5, 6, 7], [3, 9, 5, 6, 7, 8])
    assert (seen.right, seen.accepted) == (1, False)
    assert matching(seen, 3, 3) == [(4, (5, 6, 7)), (5, (6, 7, 8))]
    assert matching(seen, 4, 4) == [(4, (5, 6, 7, 8))]
    assert matching(seen, 5, 5) == []
    assert matching(seen, 4, 2) == [(4, (5, 6, 7, 8)), (5, (6, 7, 8)), (6, (7, 8))]


def test_all_outputs_from_the_rejection_on_become_phrases() -> None:
    seen = verified([3, 4, 5, 6], [3, 9, 8, 6, 7])
    assert refined(seen, 2) == [(9, (8, 6)), (8, (6, 7))]
    assert refined(verified([3, 4], [3, 4, 5]), 1) == []


def test_phrases_after_an_accepted_draft_are_put_right() -> None:
    tree = Tree.chain([3]).graft(Tree.of_paths([(4, 5), (7,)]), at=0)
    outputs = [3, 4, 6, 8, 2]  # after the root, 3, 4, 5, and 7
    logits = torch.nn.functional.one_hot(torch.tensor(outputs), VOCAB).float()
    round = Round(0, tree, logits, Path((0, 1), (3, 4, 6)))
    seen = Verified.of(round, 0, (3,), [(4, 5), (7, 1)])
    assert seen.accepted and seen.last == 3
    # (4, 5) should have been (4, 6); of (7, 1) the second token was not scored, but 7 was: (4, 2).
    assert corrected(seen, 2) == [((4, 5), (4, 6)), ((7, 1), (4, 2))]


@given(
    draft=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    outputs=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    size=st.integers(1, 4),
    shortest=st.integers(1, 5),
)
def test_matching_against_the_rule_word_by_word(
    draft: list[int], outputs: list[int], size: int, shortest: int
) -> None:
    outputs = outputs[: len(draft) + 1]
    seen = verified(draft, outputs)
    expected = []
    for place in range(seen.right, len(draft)):
        after = outputs[1:]  # after[i]: what the target says after draft[i]
        phrase = [after[place]]
        while (
            len(phrase) < size
            and place + len(phrase) < len(draft)
            and draft[place + len(phrase)] == phrase[-1]
        ):
            phrase.append(after[place + len(phrase)])
        if len(phrase) >= min(size, shortest):
            expected.append((draft[place], tuple(phrase)))
    assert matching(seen, size, shortest) == expected


def test_phrases_hang_after_the_draft() -> None:
    pool = PhrasePool(3)
    drafter = Ouroboros(
        toy_host(), draft="twin", inner="plain", length=2, branches=0, level=3, pool=pool
    )
    target, prompt = ToyTarget(), [3, 1, 4, 1, 5]
    text, _, _ = generate(target, drafter, prompt, 12, budget=0)
    pool.add(text[1], (text[2], text[3]))
    pool.add(text[1], (9, 9))
    drafter.start(TextStart(prompt))
    tree = drafter.propose(20)
    assert tree.find(text[:4]) is not None  # the draft, and a phrase after it
    assert tree.find([*text[:2], 9, 9]) is not None


def test_phrases_hang_along_the_draft() -> None:
    """With hang=all after the root and each guess, each node knowing who proposed it."""
    pool = PhrasePool(3)
    drafter = Ouroboros(
        toy_host(), draft="twin", length=2, branches=0, level=3, pool=pool, text=False, hang="all"
    )
    prompt = [3, 1, 4, 1, 5]
    text, _, _ = generate(ToyTarget(), drafter, prompt, 12, budget=0)
    for key in (prompt[-1], *text[:2]):
        pool.add(key, (9, 9))
    pool.add(prompt[-1], tuple(text[:2]))
    drafter.start(TextStart(prompt))
    tree = drafter.propose(20)
    for place in range(3):
        assert tree.find([*text[:place], 9, 9]) is not None
    first = tree.find(text[:1])
    assert first is not None and tree.sources is not None
    assert tree.sources[first] == 0b11  # the draft model says it, and so does a phrase
    assert tree.weights is not None
    assert [one.name for one in drafter.report()] == ["draft", "phrases"]


def test_text_and_draft_become_phrases() -> None:
    """Every key with what came after it; the prompt only where that is wanted."""
    prompt = [3, 1, 4, 1, 5]
    for learn in (False, True):
        drafter = Ouroboros(
            toy_host(), draft="near", length=2, level=3, verification="none", prompt=learn
        )
        output, _, _ = generate(ToyTarget(), drafter, prompt, 8)
        held = {(key, phrase) for key, phrases in drafter.pool for phrase in phrases}
        whole = [*prompt, *output]
        said = {(whole[at], tuple(whole[at + 1 : at + 3])) for at in range(len(whole) - 2)}
        assert {one for one in said if one[0] not in prompt} <= held
        assert ((3, (1, 4)) in held) is learn


@given(pieces=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6), size=st.integers(1, 4))
def test_phrases_of_a_text_against_all_of_it_at_once(pieces: list[list[int]], size: int) -> None:
    pool, known = PhrasePool(50), [7, 8]
    pool.add_text((), known, size)
    for piece in pieces:
        pool.add_text(known, [11, 12, 13], size)  # never said
        pool.add_text(known, piece, size)
        known += piece
    held = {(key, phrase) for key, found in pool for phrase in found if max(key, *phrase) < 10}
    ends = range(size + 1, len(known) + 1)
    assert held == {(known[end - size - 1], tuple(known[end - size : end])) for end in ends}


def test_without_a_window_the_draft_model_reads_phrases_alone() -> None:
    pool = PhrasePool(2)
    drafter = Lookahead(LookaheadSettings(window=0, level=3), pool=pool)
    assert drafter.sized_by == "nodes" and Lookahead().sized_by == "whole"
    drafter.start(TextStart([1, 2]))
    assert not len(drafter.propose(9))
    pool.add(2, (3, 4))
    assert drafter.propose(9).find([3, 4]) is not None
    assert len(drafter.propose(1)) == 1


def test_the_draft_model_reads_no_phrase_of_tokens_that_it_does_not_have() -> None:
    """The narrow toy has eleven tokens, and its strict target raises for any other."""
    drafter = Ouroboros(
        toy_host(), draft="narrow", length=2, branches=0, level=3, guesses=3, budget=20
    )
    for key in range(16):
        drafter.pool.add(key, (14, 15))
        drafter.pool.add(key, (9, 12))
    drafter.start(TextStart([3, 1, 4, 1, 5]))
    tree = drafter.propose(30)
    assert len(tree) > 2
    # For the target they are phrases like any other.
    draft = [tree.tokens[node] for node in (0, 1)]
    assert tree.find([*draft, 14, 15]) is not None and tree.find([*draft, 9, 12]) is not None


@pytest.mark.parametrize("verification", ["paper", "package"])
def test_what_the_target_says_beside_a_draft_may_be_unknown_to_its_model(
    verification: str,
) -> None:
    drafter = Ouroboros(
        toy_host(),
        draft="narrow",
        length=3,
        window=1,
        level=2,
        verification=verification,
        budget=8,
    )
    for first in range(11):
        for second in range(11):
            output, _, _ = generate(ToyTarget(), drafter, [first, second], 6)
            assert len(output) == 6
    assert any(max(phrase) >= 11 for _, phrases in drafter.pool for phrase in phrases)


def test_a_history_makes_the_second_text_quicker() -> None:
    """The toy falls into a cycle, so the phrases of one text are those of the next."""

    def rounds(history: bool) -> list[int]:
        drafter = Ouroboros(
            toy_host(), draft="near", length=3, window=3, level=4, guesses=3, history=history
        )
        found = []
        for _ in range(2):
            _, played, _ = generate(ToyTarget(), drafter, [3, 1, 4, 1, 5], 40, budget=40)
            found.append(len(played))
        return found

    kept, forgotten = rounds(True), rounds(False)
    assert kept[0] == forgotten[0] == forgotten[1]
    assert kept[1] <= kept[0]


def test_the_pool_is_written_and_read_again(tmp_path: FilePath) -> None:
    file = tmp_path / "phrases.jsonl"
    settings = {"draft": "near", "phrases": str(file), "window": 3, "level": 3, "guesses": 3}
    drafter = Ouroboros(toy_host(), **settings)
    generate(ToyTarget(), drafter, [3, 1, 4, 1, 5], 30)
    held = dict(drafter.pool)
    assert held
    del drafter
    assert dict(Ouroboros(toy_host(), **settings).pool) == held
    file.write_text("no phrases\n")
    with pytest.raises(ModelError, match=r"phrases\.jsonl"):
        Ouroboros(toy_host(), **settings)


def test_many_texts_do_not_grow_the_pool() -> None:
    drafter = Ouroboros(toy_host(), draft="near", window=4, level=3, guesses=4, most=50)
    for first in range(16):
        generation = Generation([first, 2, 3], drafter, Stopping(25))
        for _ in decode(ToyTarget(), [generation], 30):
            assert len(drafter.pool) <= 50


def test_phrases_are_kept_in_a_file_of_the_home_folder(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    drafter = Ouroboros(toy_host(), draft="near", window=4, phrases="~/kept.jsonl")
    drafter.pool.add(1, [2, 3])
    del drafter
    assert {each.name for each in tmp_path.iterdir()} == {"kept.jsonl", ".kept.jsonl.lock"}
    again = Ouroboros(toy_host(), draft="near", window=4, phrases="~/kept.jsonl")
    assert again.pool.newest(1) == ((2, 3),)
    for nowhere in ("~/none/kept.jsonl", "~nobody-of-this-name/kept.jsonl"):
        with pytest.raises(ModelError, match="no folder"):
            Ouroboros(toy_host(), draft="near", phrases=nowhere)


def test_phrases_are_written_where_they_were_read(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    drafter = Ouroboros(toy_host(), draft="near", phrases="kept.jsonl")
    monkeypatch.chdir(tmp_path / "other")
    del drafter
    assert (tmp_path / "kept.jsonl").is_file()


def test_phrases_of_a_file_are_not_forgotten_for_every_text() -> None:
    """The file would be read in vain, and then hold those of the last text."""
    with pytest.raises(UsageError, match="leave out phrases= or history=false"):
        OuroborosSettings(draft="near", phrases="kept.jsonl", history=False)


def test_bad_settings_are_named() -> None:
    with pytest.raises(UsageError, match="lengthen must be a whole number >= 0"):
        OuroborosSettings(draft="twin", lengthen=-1)
    with pytest.raises(UsageError, match="level must be a whole number >= 2"):
        OuroborosSettings(level=1)
    with pytest.raises(UsageError, match="unknown method 'phrase'"):
        OuroborosSettings(inner="phrase")


def test_the_draft_models_own_drafter_is_phrases_but_in_a_copy() -> None:
    assert OuroborosSettings(draft="near").inner_method(slow=True) == "phrases"
    assert OuroborosSettings(draft="self").inner_method(slow=True) == "anpd"
    assert OuroborosSettings(draft="self", inner="phrases").inner_method(slow=True) == "phrases"
    assert OuroborosSettings(draft="near", inner="plain").inner_method(slow=True) == "plain"


class Overflowing(ToyTarget):
    """Its scores are NaN after tokens that plain decoding does not write."""

    never: frozenset[int] = frozenset()

    def score(self, *work: Any) -> dict[int, torch.Tensor]:
        found = super().score(*work)
        for slot, tree in work[0].items():
            bad = [node + 1 for node, token in enumerate(tree.tokens) if token in self.never]
            found[slot] = found[slot].index_fill(0, torch.tensor(bad, dtype=torch.long), math.nan)
        return found


@pytest.mark.parametrize(
    "settings", ["draft=stranger", "draft=stranger,window=3,level=4,guesses=3"]
)
def test_scores_that_plain_decoding_does_not_read_end_no_text(settings: str) -> None:
    prompt = [1, 2, 3]
    plain, _, _ = generate(ToyTarget(), make_drafter("plain"), prompt, 60)
    target = Overflowing()
    target.never = frozenset(range(target.vocab_size)) - {*plain}
    assert target.never
    drafter = make_drafter(f"ouroboros:{settings}", toy_host(target))
    found, rounds, _ = generate(target, drafter, prompt, 60, budget=16)
    assert found == plain and any(target.never & {*round.tree.tokens} for round in rounds)
