"""One tree from several drafters, and when those that take time are asked."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.draft_hosts import toy_host
from tests.helpers import token_paths
from tests.planning.replay import FLAT, Device, Scripted, replay, table

from paceline.drafters import Anpd, Auto, Llma, PromptLookup, check_method, make_drafter
from paceline.drafters.costly_sources import CostlySources
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.ppd_source import PpdSource
from paceline.drafters.suffix import Suffix
from paceline.errors import ModelError, UsageError
from paceline.planning.planner import TreePlanner
from paceline.protocols import HIDDEN_STATES, Drafter
from paceline.records import Path, Round, TextStart
from paceline.stats import Stats
from paceline.tree import EMPTY, Tree

ALL_NEW = list(range(1000, 1900))
"""A text in which nothing comes twice: lookups never guess."""
HABIT = [5, 6, 7, 8] * 200


def said(*tokens: int) -> Round:
    return Round(0, EMPTY, torch.zeros(1, 4), Path(tuple(range(len(tokens) - 1)), tokens))


def played(
    story: Sequence[int], costly: dict[str, Callable[[Device], Drafter]]
) -> tuple[Auto, Stats, Device]:
    """A text written by force with n-grams and these; passes of 10 ms."""
    device = Device(table(FLAT))
    sources: dict[str, Drafter] = {"anpd": Anpd()}
    auto = Auto(sources | {name: make(device) for name, make in costly.items()}, None, device.clock)
    stats = Stats()
    for round in replay(device, [auto], story, TreePlanner()):
        stats.add(round)
    return auto, stats, device


def scripted(right: int, milliseconds: float, story: Sequence[int]) -> Callable[[Device], Drafter]:
    return lambda device: Scripted(
        story, lambda place: right, length=4, device=device, milliseconds=milliseconds
    )


def share(stats: Stats, name: str) -> float:
    return stats.sources[name].asked / stats.sources[name].rounds


@given(text=st.lists(st.integers(0, 2), min_size=2, max_size=40), budget=st.integers(0, 30))
def test_the_tree_holds_what_every_source_guesses_and_says_whose_it_is(
    text: list[int], budget: int
) -> None:
    sources: dict[str, Drafter] = {"anpd": Anpd(), "llma": Llma(), "pld": PromptLookup()}
    auto = Auto(sources)
    auto.start(TextStart(text))
    tree = auto.propose(budget)
    assert len(tree) <= budget
    if budget == 0:
        return
    paths = [set(token_paths(source.propose(budget))) for source in sources.values()]
    assert set(token_paths(tree)) <= set().union(*paths)
    if len(set().union(*paths)) <= budget:
        assert set(token_paths(tree)) == set().union(*paths)
    assert len(token_paths(tree)) == len(set(token_paths(tree)))
    for path, by in zip(token_paths(tree), tree.sources or (), strict=True):
        assert by == sum(1 << place for place, known in enumerate(paths) if path in known)


def test_sources_that_read_the_same_text_do_not_make_each_other_surer() -> None:
    auto = Auto({"anpd": Anpd(), "pld": PromptLookup()})
    auto.start(TextStart([1, 2, 3, 4, 1, 2, 3]))
    tree = auto.propose(1)
    claims = [source.propose(1).weights for source in auto._sources]
    assert tree.tokens == (4,) and tree.sources == (3,)
    assert tree.weights == max(claims)  # type: ignore[type-var]


def test_one_that_is_always_right_is_asked_although_it_is_costly() -> None:
    _, stats, device = played(ALL_NEW, {"costly": scripted(4, 4.0, ALL_NEW)})
    assert share(stats, "costly") > 0.9
    assert stats.sources["costly"].gained > 0.7 * stats.tokens
    assert device.spent < 0.5 * 10.0 * len(ALL_NEW)


def test_one_that_is_never_right_is_sent_away() -> None:
    _, stats, device = played(ALL_NEW, {"costly": scripted(0, 4.0, ALL_NEW)})
    assert stats.sources["costly"].asked > 0
    assert share(stats, "costly") < 0.05
    assert device.spent < 1.05 * 10.0 * len(ALL_NEW)


def test_one_that_knows_no_more_than_the_text_is_sent_away() -> None:
    """It is always right, and so are n-grams."""
    story = HABIT * 4
    _, stats, _ = played(story, {"costly": scripted(4, 4.0, story)})
    assert stats.sources["costly"].gained < 40
    assert share(stats, "costly") < 0.2


def test_one_is_asked_only_where_the_others_do_not_know() -> None:
    """Stretches that repeat themselves, and others in which all is new."""
    story: list[int] = []
    for part in range(12):
        story += [100 * part + 1000 + step for step in range(40)]
        story += [1, 2, 3, 4] * 15
    _, stats, _ = played(story, {"costly": scripted(4, 3.0, story)})
    known = stats.sources["anpd"]
    assert 0.2 < share(stats, "costly") < 0.95
    assert stats.sources["costly"].gained > 0.5 * 12 * 40
    assert known.accepted > 0.5 * 12 * 60


class Rows(PpdSource):
    """Rows that buy nothing."""

    requires = frozenset()

    def __init__(self) -> None:
        pass

    def start(self, text: TextStart) -> None:
        pass

    def propose(self, budget: int) -> Tree:
        return EMPTY

    def observe(self, round: Round) -> None:
        pass

    def add_rows(self, tree: Tree, most: int) -> Tree:
        return tree


@pytest.mark.parametrize("name", ["rows", "costly"])
def test_every_round_counts_without_a_lookup_that_is_judged(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Or a source whose budget is used up would never be tried again."""
    counted, own = list[int](), CostlySources.played

    def played(self: CostlySources, context: int, *rest: Any) -> None:
        counted.append(context)
        own(self, context, *rest)

    monkeypatch.setattr(CostlySources, "played", played)
    device = Device(table(FLAT))
    sources: dict[str, Drafter] = {
        "rows": {"anpd": Anpd(), "rows": Rows()},
        "costly": {"costly": scripted(0, 4.0, ALL_NEW)(device)},
    }[name]
    rounds = list(replay(device, [Auto(sources, None, device.clock)], ALL_NEW, 8))
    assert len(counted) >= len(rounds) - 1


def test_of_two_that_say_the_same_the_cheaper_is_kept() -> None:
    costly = {"slow": scripted(4, 4.0, ALL_NEW), "fast": scripted(4, 1.0, ALL_NEW)}
    _, stats, _ = played(ALL_NEW, costly)
    assert share(stats, "slow") + share(stats, "fast") < 1.4
    alone = played(ALL_NEW, {"slow": costly["slow"]})[1]
    assert stats.rounds <= 1.2 * alone.rounds


class Silent(LookupDrafter):
    """Knows nothing."""

    def start(self, text: TextStart) -> None:
        pass

    def observe(self, round: Round) -> None:
        pass

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        return EMPTY


class Boastful(Silent):
    """Is sure of long chains, and always wrong."""

    def propose_after(self, path: Sequence[int], budget: int) -> Tree:
        tree = Tree.chain(range(1, 1 + budget))
        return Tree(tree.tokens, tree.parents, tuple(0.99**n for n in range(1, 1 + budget)))


def test_guesses_are_not_crowded_out_by_those_of_a_boastful_source() -> None:
    """The planner knows whom to believe, but only of nodes that it is shown."""

    def rounds(lookup: LookupDrafter) -> int:
        device, story = Device(table(FLAT)), list(ALL_NEW[:400])
        sources = {"lookup": lookup, "costly": scripted(4, 1.0, story)(device)}
        auto = Auto(sources, None, device.clock)
        return sum(1 for _ in replay(device, [auto], story, TreePlanner()))

    assert rounds(Boastful()) <= 1.1 * rounds(Silent())


@pytest.mark.parametrize(("first", "low", "high"), [(Anpd, 0.1, 0.5), (Silent, 0.95, 1.0)])
def test_a_second_lookup_is_asked_as_far_as_it_adds_something(
    first: type[LookupDrafter], low: float, high: float
) -> None:
    device, stats, story = Device(table(FLAT)), Stats(), HABIT * 4
    auto = Auto({"first": first(), "second": PromptLookup()}, None, device.clock)
    for round in replay(device, [auto], story, TreePlanner()):
        stats.add(round)
    assert share(stats, "first") > 0.9
    assert low <= share(stats, "second") <= high


def test_a_costly_one_on_trial_does_not_send_the_cheap_ones_away() -> None:
    """N-grams know one token in six, which is less than the costly source costs."""
    rng = random.Random(5)
    story: list[int] = []
    for place in range(200):
        first = rng.randrange(8)
        story += [1000 + 4 * place + step for step in range(4)] + [first, 100 + first]
    _, stats, _ = played(story, {"costly": scripted(0, 9.0, story)})
    assert 0 < stats.sources["costly"].asked < 40
    assert share(stats, "anpd") > 0.9


def test_one_that_has_rested_is_tried_again() -> None:
    """Wrong in the first part of the text, always right later."""
    story = list(range(1000, 3500))

    def turning(device: Device) -> Drafter:
        def right(place: int) -> int:
            return 0 if place < 300 else 4

        return Scripted(story, right, length=4, device=device, milliseconds=1.0)

    _, stats, _ = played(story, {"costly": turning})
    assert stats.sources["costly"].gained > 800


class Told(CostlySources):
    """Asks all or none."""

    def __init__(self, *names: str) -> None:
        super().__init__(names)
        self.now = False

    def asks(self, name: str, sure: float, unread: int = 0, left: float = 0.0) -> bool:
        return self.now


def test_a_draft_model_that_has_rested_catches_up_in_its_next_pass() -> None:
    """It reads twelve tokens more, and takes no pass more than guesses."""
    draft = make_drafter("speculative:draft=near,length=3", toy_host())
    fresh = make_drafter("speculative:draft=near,length=3", toy_host())
    costly = Told("draft")
    auto = Auto({"anpd": Anpd(), "draft": draft}, costly)
    rng = random.Random(3)
    text = [rng.randrange(16) for _ in range(6)]
    auto.start(TextStart(text))
    costly.now = True
    auto.propose(4)
    before: Counter[int] = Counter(draft.widths)  # type: ignore[attr-defined]
    costly.now = False
    for _ in range(12):
        auto.propose(4)
        token = rng.randrange(16)
        auto.observe(said(token))
        text.append(token)
    assert draft.widths == before  # type: ignore[attr-defined]
    costly.now = True
    tree = auto.propose(200)
    fresh.start(TextStart(text))
    own = fresh.propose(200)
    assert len(own) > 0
    assert set(token_paths(own)) <= set(token_paths(tree))
    new = Counter(draft.widths) - before  # type: ignore[attr-defined]
    assert 1 <= sum(new.values()) <= 3


class Noting(Told):
    """Asks all, and notes what it is told."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.now = True
        self.times: list[tuple[str, int]] = []
        self.passes: list[float | None] = []
        self.judged: list[str] = []

    def judge(
        self, name: str, sure: float, tokens: int, claimed: float, width: int, own: int
    ) -> None:
        self.judged.append(name)

    def took(self, name: str, milliseconds: float, unread: int = 0, sure: float = 0.0) -> None:
        self.times.append((name, unread))

    def played(
        self, context: int, width: int, tokens: int, drafting: float, target: float | None
    ) -> None:
        self.passes.append(target)


def test_a_source_on_states_is_not_asked_before_there_are_any() -> None:
    """And so neither judged nor, on trial, paid for. The loop offers what the target has read, which
    in a text's first round is nothing, or a beginning that it shares with another."""

    class OnStates(Scripted):
        requires = frozenset({HIDDEN_STATES})

    costly = Noting("costly")
    auto = Auto({"anpd": Anpd(), "costly": OnStates(ALL_NEW, lambda place: 1)}, costly)
    for _ in range(2):
        costly.times.clear()
        auto.start(TextStart([1, 2, 1]))
        auto.offer_states(lambda layers: torch.zeros(0, 8))
        auto.propose(4)
        auto.observe(said(2))
        assert costly.times == []
        auto.offer_states(lambda layers: torch.zeros(3, 8))
        auto.propose(4)
        assert costly.times == [("costly", 0)]
        auto.observe(said(2))


def test_a_round_beside_a_prompt_counts_but_its_pass_is_not_timed() -> None:
    costly = Noting("costly")
    auto = Auto({"anpd": Anpd(), "costly": Scripted(ALL_NEW, lambda place: 1)}, costly)
    auto.start(TextStart([1, 2, 1]))
    for prefill, first in [(True, True), (True, False), (False, False)]:
        auto.propose(4)
        auto.observe(said(2).with_(prefill=prefill, first=first))
    beside, alone = costly.passes
    assert beside is None and alone is not None


def test_lookups_continue_costly_guesses() -> None:
    """The costly source says 7, which is new here; what follows 7 stands in the text."""
    costly = Told("costly")
    costly.now = True
    story = [7, 8, 9]
    auto = Auto(
        {"pld": PromptLookup(), "costly": Scripted(story, lambda place: 1, length=1)}, costly
    )
    auto.start(TextStart([7, 8, 9, 3, 4, 5, 6]))
    tree = auto.propose(12)
    known = dict(zip(token_paths(tree), tree.sources or (), strict=True))
    assert known[(7,)] == 2 and known[(7, 8)] == known[(7, 8, 9)] == 1
    weights = dict(zip(token_paths(tree), tree.weights or (), strict=True))
    assert all(weights[path] >= weights[longer] for path, longer in pairwise([(7,), (7, 8)]))


def test_statistics_by_source_add_up() -> None:
    _, stats, _ = played(HABIT, {"costly": scripted(4, 4.0, HABIT)})
    rounds = sum(stats.acceptance_histogram.values())
    for source in stats.sources.values():
        assert source.rounds == rounds
        assert source.asked <= rounds
        assert source.gained <= source.accepted <= source.scored <= stats.drafted
        assert source.scored <= source.proposed
    assert stats.sources["costly"].seconds == pytest.approx(
        4e-3 * stats.sources["costly"].asked, rel=0.01
    )
    twice = Stats()
    twice.merge(stats)
    twice.merge(stats)
    assert twice.sources["anpd"].accepted == 2 * stats.sources["anpd"].accepted
    assert twice.accepted == 2 * stats.accepted


def test_sources_are_named_and_left_out() -> None:
    # All that need no model.
    assert make_drafter("auto").source_names == ("anpd", "suffix", "llma", "rest")
    assert make_drafter("auto:-llma,-rest").source_names == ("anpd", "suffix")
    assert make_drafter("auto:-llma,-rest,-medusa").source_names == ("anpd", "suffix")
    for both in ("without=llma,-rest", "-rest,without=llma"):
        assert make_drafter(f"auto:{both}").source_names == ("anpd", "suffix")
    assert make_drafter("auto:sources=(pld:n=2,k=3+anpd)").source_names == ("pld", "anpd")
    assert make_drafter("auto", without="anpd+suffix+rest").source_names == ("llma",)
    drafting = make_drafter("auto:sources=anpd+speculative:draft=near", toy_host())
    assert drafting.source_names == ("anpd", "speculative")
    within = "speculative:draft=near,inner=(auto:sources=anpd+pld)"
    drafting = make_drafter(f"auto:sources=(anpd+{within}+llma)", toy_host())
    assert drafting.source_names == ("anpd", "speculative", "llma")


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("auto:-ngrams", "no source 'ngrams'"),
        ("auto:sources=anpd,-anpd", "no sources left"),
        ("auto:sources=anpd+anpd", "each method once"),
        ("auto:sources=auto", "cannot be a source"),
        ("auto:sources=ngrams", "unknown method"),
        ("auto:sources=jacobi", "must stay whole"),
        ("anpd:-medusa", "has no setting 'without'"),
        ("auto:-", "cannot read"),
    ],
)
def test_what_cannot_be_united_is_refused(method: str, sentence: str) -> None:
    for act in (make_drafter, check_method):  # no model has to be loaded first
        with pytest.raises(UsageError, match=sentence):
            act(method)


def test_a_source_that_was_named_has_to_be_there() -> None:
    with pytest.raises(ModelError, match="there are no"):
        make_drafter("auto:sources=anpd+medusa", toy_host())


class Stopped(PromptLookup):
    """Fails where it is told to, and notes that it was stopped."""

    fails = ""
    stopped = False

    def resume(self, text: TextStart) -> None:
        if self.fails == "resume":
            raise ValueError("cannot resume")
        super().resume(text)

    def stop(self) -> None:
        self.stopped = True
        if self.fails == "stop":
            raise ValueError("cannot stop")


@pytest.mark.parametrize("fails", ["stop", "resume"])
def test_a_source_that_fails_at_the_end_leaves_no_other_one_open(fails: str) -> None:
    """A draft model's cache, for example."""
    sources = [Stopped(), Stopped(), Stopped()]
    auto = Auto({f"{place}": source for place, source in enumerate(sources)})
    auto.start(TextStart([1, 2, 3]))
    sources[1].fails = fails
    auto.observe(said(4))  # nobody was asked, so lookups catch up in the end
    with pytest.raises(ValueError, match=f"cannot {fails}"):
        auto.stop()
    assert all(source.stopped for source in sources)


def test_lookups_catch_up_with_rounds_in_which_nobody_asked() -> None:
    rng = random.Random(2)
    text = [rng.randrange(4) for _ in range(20)]
    asked, rested = Auto({"anpd": Anpd()}), Auto({"anpd": Anpd()})
    for auto in (asked, rested):
        auto.start(TextStart(text))
    for number in range(30):
        asked.propose(8)
        if number % 7 == 0:
            rested.propose(8)
        token = rng.randrange(4)
        for auto in (asked, rested):
            auto.observe(said(token))
    assert len(asked.propose(8)) > 0
    assert rested.propose(8) == asked.propose(8)


def test_a_lookup_that_a_text_did_not_use_knows_it_in_the_next_one() -> None:
    """Without answers so far `suffix` is left out, of rounds in which nobody is asked as well."""
    auto = Auto({"anpd": Anpd(), "suffix": Suffix()})
    auto.start(TextStart([1, 2, 3]))
    for token in (4, 5, 6, 7, 8):
        if token < 7:
            assert not any(by & 2 for by in auto.propose(8).sources or ())
        auto.observe(said(token))
    auto.stop()
    auto.start(TextStart([9, 4, 5]))
    tree = auto.propose(8)
    assert tree.tokens[:3] == (6, 7, 8) and set(tree.sources or ()) == {2}
