"""suffix, sam and rest: what they propose, what they remember, and where they look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.drafters.test_resume import beside_fresh, said, tell

from paceline.datastore import BORDER, Datastore, GrowingSuffixArray, SuffixArray, clear_datastore
from paceline.drafters import Host, Rest, Sam, Suffix, make_drafter
from paceline.drafters.known_texts import KnownTexts
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.suffix import Answers
from paceline.errors import ModelError, StoreError, UsageError
from paceline.records import TextStart
from paceline.targets.toy import ToyTarget
from paceline.testing import check_drafter

MARK = "c" * 32


def texts(*documents: list[int]) -> SuffixArray:
    joined = [token for document in documents for token in (BORDER, *document)][1:]
    return SuffixArray(np.array(joined, dtype=np.int32))


def host(folder: Path | None = None, mark: str = MARK) -> Host:
    if folder is not None:
        Datastore(folder, MARK).build([[1, 2, 3, 4, 5], [2, 3, 7]])
    return Host(ToyTarget(), vocabulary=lambda: mark)


def on(drafter: LookupDrafter, *context: int) -> LookupDrafter:
    drafter.start(TextStart(context))
    return drafter


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [Sam, Suffix])
def test_what_was_taken_back_is_as_if_it_had_never_been_said(
    kind: type[Sam | Suffix], seed: int
) -> None:
    for drafter, fresh in beside_fresh(kind, seed):
        assert drafter.propose(9) == fresh.propose(9)


@pytest.mark.parametrize("method", ["sam", "sam:branches=4", "suffix", "suffix:lengths=1"])
def test_after_a_path_is_as_if_the_text_went_on_with_it(method: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        context, path = rng.integers(0, 3, 30).tolist(), rng.integers(0, 4, 3).tolist()
        before = make_drafter(method)
        assert isinstance(before, LookupDrafter)
        on(before, *context)
        found = before.propose_after(path, 8)
        # What the path itself would teach is not known yet: it may be wrong.
        array = GrowingSuffixArray()
        array.add(context)
        if method == "sam":
            search = before._search  # type: ignore[attr-defined]
            assert found == array.look_up([*context, *path], 8, search).tree
        assert before.propose(8) == on(make_drafter(method), *context).propose(8)  # type: ignore[arg-type]


def test_sam_copies_along_the_longest_match_as_most_texts_went_on() -> None:
    tree = on(Sam(k=3), 1, 2, 3, 0, 9, 2, 4, 0, 1, 2).propose(9)
    assert tree.tokens == (3, 0, 9) and tree.parents == (-1, 0, 1)
    branched = on(Sam(k=1, branches=2), 1, 2, 3, 0, 1, 2, 4, 0, 1, 2, 4, 1, 2).propose(9)
    assert branched.tokens == (4, 3)


def test_sam_believes_the_datastore_where_it_matches_by_more_than_the_bias() -> None:
    context = [5, 1, 0, 5, 2, 3, 4, 5]
    for matching, expected in ((2, 2), (3, 2), (4, 9)):
        store = texts([*context[-matching:], 9])
        assert on(Sam(bias=2, texts=KnownTexts([store])), *context).propose(1).tokens == (expected,)
    assert on(Sam(bias=0, texts=KnownTexts([texts([3, 9])])), 1, 2, 3).propose(1).tokens == (9,)


def test_suffix_weighs_a_long_match_against_many_short_ones() -> None:
    once = [1, 2, 3, 7]
    often = [one for _ in range(9) for one in (8, 3, 4)]
    chosen = on(Suffix(k=1, lengths=9), *once, *often, 1, 2, 3).propose(1)
    assert chosen.tokens in ((7,), (4,))
    longest = on(Suffix(k=1, lengths=1), *once, *often, 1, 2, 3).propose(1)
    assert longest.tokens == (7,)
    both = [sum(tree.weights or ()) for tree in (chosen, longest)]
    assert both[0] >= both[1]
    # One sighting after one token against nine after another.
    assert on(Suffix(k=1, lengths=9), 2, 3, 7, *often, 2, 3).propose(1).tokens == (4,)


def test_suffix_remembers_what_the_session_answered_and_not_what_it_was_asked() -> None:
    one = Host(ToyTarget())
    first = make_drafter("suffix", one)
    first.start(TextStart([9, 9, 9, 9, 9, 9, 4]))
    tell(first, [5, 6, 7])
    first.stop()
    second = make_drafter("suffix", one)
    second.start(TextStart([1, 5, 6]))
    assert second.propose(3).tokens == (7,)
    second.stop()  # which has said nothing
    kept = second._answers.array.tokens  # type: ignore[attr-defined]
    assert kept.tolist() == [BORDER, 9, 9, 9, 4, 5, 6, 7]
    assert make_drafter("suffix", one.fresh())._answers.array.tokens.tolist() == []  # type: ignore[attr-defined]
    forgetful = make_drafter("suffix:persist=false", one)
    forgetful.start(TextStart([1, 5, 6]))
    assert forgetful.propose(3).tokens == ()


def test_answers_stay_within_their_limit_and_the_oldest_go() -> None:
    answers, rng = Answers(1024), np.random.default_rng(0)
    for number in range(60):
        answers.add([number, *rng.integers(100, 200, rng.integers(1, 90)).tolist()])
        assert len(answers.array) <= 1024
    known = answers.array.tokens
    assert 59 in known and 0 not in known and known[0] == BORDER
    assert answers.array.look_up([59], 1).matched == 1
    answers.add(list(range(5000)))
    assert len(answers.array) <= 1024 and answers.array.tokens[-1] == 4999


def test_rest_looks_into_the_datastore_alone() -> None:
    store = texts([1, 2, 3, 4, 5], [2, 3, 7], [2, 3, 7, 8])
    tree = on(Rest(texts=KnownTexts([store])), 5, 5, 2, 3).propose(9)
    assert tree.tokens == (7, 8, 4, 5) and tree.parents == (-1, 0, -1, 2)
    assert on(Rest(texts=KnownTexts([store])), 2, 3, 6, 2, 3, 6).propose(9).tokens == ()
    assert on(Rest(n=1, texts=KnownTexts([store])), 3).propose(1).tokens == (7,)
    assert on(Rest(k=1, texts=KnownTexts([store])), 1, 2, 3).propose(9).tokens == (4,)
    assert on(Rest(longest=2, texts=KnownTexts([store])), 1, 2, 3).propose(1).tokens == (7,)
    drafter = on(Rest(texts=KnownTexts([store])), 1)
    drafter.observe(said(2))
    assert drafter.propose(2).tokens == (3, 4)
    assert drafter.propose_after([3], 2).tokens == (4, 5)


@pytest.mark.parametrize("method", ["rest:n=1", "sam:bias=0"])
def test_the_sessions_datastore_may_be_named_as_well(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the session adds is found, whether or not its folder is written in the same way."""
    monkeypatch.chdir(tmp_path)
    for name in ("store", f"{tmp_path}/./store", ""):
        store = Datastore(tmp_path / "store", MARK)
        store.add([[1, 2, 3]])
        drafter = make_drafter(method, replace(host(), datastore=store), datastore=name)
        store.add([[7, 8, 9]])
        drafter.start(TextStart([5, 7]))
        assert drafter.propose(2).tokens == (8, 9)
        clear_datastore(tmp_path / "store")


@pytest.mark.parametrize("method", ["rest", "sam", "rest:n=1,k=3", "sam:bias=0"])
def test_a_datastore_keeps_the_contract_of_drafters(method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Datastore(tmp_path, MARK).build(rng.integers(0, 16, (40, 50)).tolist())
    colon = "," if ":" in method else ":"
    owner = host()
    check_drafter(lambda: make_drafter(f"{method}{colon}datastore={tmp_path}", owner))


def test_the_models_own_datastore_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    with pytest.raises(StoreError, match="paceline datastore build"):
        make_drafter("rest", host())
    on(make_drafter("sam", host()), 1, 2)  # type: ignore[arg-type]
    Datastore(Datastore.default_folder(MARK), MARK).build([[1, 2, 3, 4, 5, 6, 7]])
    for method in ("rest", "sam:bias=0"):
        drafter = make_drafter(method, host())
        assert on(drafter, 1, 2).propose(2).tokens == (3, 4)  # type: ignore[arg-type]
    private = replace(host(), finds_datastore=False)
    assert on(make_drafter("sam:bias=0", private), 1, 2).propose(2).tokens == ()  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="no datastore was named"):
        make_drafter("rest", private)
    off = make_drafter("sam:datastore=none,bias=0", host())
    assert on(off, 1, 2).propose(2).tokens == ()  # type: ignore[arg-type]
    nameless = Host(ToyTarget(), vocabulary=lambda: "")
    assert on(make_drafter("sam:bias=0", nameless), 1, 2).propose(2).tokens == ()  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="tokenizer of this model is unknown"):
        make_drafter("rest", nameless)


def test_a_datastore_of_another_model_is_refused(tmp_path: Path) -> None:
    owner = host(tmp_path)
    with pytest.raises(StoreError, match="another tokenizer"):
        make_drafter(f"rest:datastore={tmp_path}", host(mark="d" * 32))
    with pytest.raises(ModelError, match="tokenizer of this model is unknown"):
        make_drafter(f"rest:datastore={tmp_path}", Host(ToyTarget()))
    for nowhere in (str(tmp_path / "none"), "~nobody-of-this-name/texts", "n" * 300):
        with pytest.raises(StoreError, match="there is no datastore at"):
            make_drafter(f"rest:datastore={nowhere}", owner)
    Datastore(tmp_path, MARK).build([[99]])
    with pytest.raises(StoreError, match="holds the token 99"):
        make_drafter(f"rest:datastore={tmp_path}", host())


@pytest.mark.parametrize(
    "wrong",
    ["sam:n=0", "sam:bias=-1", "rest:n=5,longest=4", "rest:longest=99", "suffix:most=3"],
)
def test_values_out_of_range_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="must be"):
        make_drafter(wrong)


def test_guesses_are_of_the_kind_that_trees_take() -> None:
    tree = on(Sam(), 1, 2, 3, 1, 2).propose(3)
    assert all(type(token) is int for token in tree.tokens + tree.parents)
    assert torch.tensor(tree.tokens).dtype == torch.int64


def test_an_answer_that_may_not_be_recorded_is_not_kept() -> None:
    answers = Answers(2048)
    for record, kept in ((False, 0), (True, 4)):
        drafter = Suffix(answers=answers)
        drafter.start(TextStart([1, 2], record=record))
        tell(drafter, [3])
        drafter.stop()
        assert len(answers.array) == kept
