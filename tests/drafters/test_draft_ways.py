"""A draft model with or without its own drafter."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.draft_hosts import toy_host

from paceline.drafters import Host, make_drafter
from paceline.drafters.draft_chain import Guess, Said, Speaker
from paceline.drafters.draft_text import DraftText, WayTimes
from paceline.records import TextStart
from paceline.sampling import Sampler
from paceline.targets.toy import ToyTarget


def test_the_faster_way_is_taken_and_the_other_tried_ever_more_rarely() -> None:
    times, ways = WayTimes(), list[bool]()
    for _ in range(1200):
        ways.append(times.next_in_rounds)
        times.drafted(ways[-1], 3.0 if ways[-1] else 1.0, 1)
    assert ways[:32] == [True] * 32 and not times.in_rounds
    trials = [at for at in range(1, 1200) if ways[at] and not ways[at - 1]]
    waits = [after - before for before, after in pairwise(trials)]
    assert waits == sorted(waits) and waits[-1] > 2 * waits[0]
    assert ways[36:].count(True) == 4 * len(trials)


def test_a_way_that_becomes_faster_is_found() -> None:
    times = WayTimes()
    for at in range(3000):
        way = times.next_in_rounds
        times.drafted(way, 1.0 if way == (at >= 100) else 2.0, 1)
        assert at != 99 or not times.in_rounds
    assert times.in_rounds


def test_rounds_that_gain_much_in_few_drafts_stay() -> None:
    times = WayTimes()
    for at in range(2000):
        way = times.next_in_rounds
        times.drafted(way, 1.0, (20 if at % 10 == 0 else 1) if way else 2)
        assert times.in_rounds


def test_seconds_count_per_guess() -> None:
    times = WayTimes()
    for _ in range(100):
        way = times.next_in_rounds
        times.drafted(way, 3.0 if way else 2.0, 3 if way else 1)
    assert times.in_rounds


class Counting(Speaker):
    """Says the two numbers after the text's last one, each time in some seconds."""

    def __init__(self, clock: list[float], seconds: float, prefill: bool = False) -> None:
        super().__init__(ToyTarget(), 0, lambda: clock[0])
        self.clock, self.seconds, self.prefill = clock, seconds, prefill
        self.open = False
        self.asked = 0

    def start(self, text: list[int], started: TextStart) -> None:
        assert not self.open
        self.open = True
        super().start(text, started)

    def correct(self, kept: int) -> None:
        assert self.open
        super().correct(kept)

    def _pass(self, room: int) -> Said:
        assert self.open
        self.asked += 1
        self.clock[0] += self.seconds
        guesses = [Guess(self._text[-1] + 1 + at, 0.5) for at in range(2)]
        self._text += [guess.token for guess in guesses]
        return Said(guesses, 1, self.seconds, self.prefill)

    def stop(self) -> None:
        self.open = False


def test_a_biased_text_may_change_ways() -> None:
    host, times = toy_host(), WayTimes()
    host.learned[WayTimes, type(make_drafter("anpd"))] = times
    draft = DraftText(host, make_drafter("anpd"), host.target.vocab_size, 1)
    draft.start(TextStart([1, 2, 3], sampler=Sampler(logit_bias=((5, 1.0),), temperature=0.8)))
    for at in range(40):
        times.in_rounds = at % 8 < 4
        draft.guess(3)
        assert len(draft.guesses) >= 3
        draft.observe([guess.token for guess in draft.guesses[:2]])
    draft.stop()


@pytest.mark.parametrize("prefill", [False, True])
def test_both_ways_continue_one_text(prefill: bool) -> None:
    clock = [0.0]
    rounds, chain = (Counting(clock, seconds, prefill) for seconds in (3.0, 1.0))
    host = Host(ToyTarget(vocab_size=1000), clock=lambda: clock[0])
    draft = DraftText(host, make_drafter("anpd"), 1000, 1)
    draft._way, draft._ways = rounds, {True: rounds, False: chain}
    for _ in range(2):
        text = [0]
        draft.start(TextStart(text))
        for at in range(120):
            draft.guess(2)
            said = [guess.token for guess in draft.guesses]
            draft.observe(said)
            text += said
            if at % 3 == 0:
                text.pop()
                draft.resume(TextStart(text))
        assert text == [*range(201)]
        draft.stop()
    assert (chain.asked > rounds.asked) != prefill  # reading a prompt says nothing about either


@pytest.mark.parametrize("slow", [True, False])
def test_guesses_are_those_of_the_draft_model_either_way(slow: bool) -> None:
    host, times = toy_host(), WayTimes()
    times.in_rounds = slow
    host.learned[WayTimes, type(make_drafter("anpd"))] = times
    drafts = []
    for method in ("plain", "anpd"):
        draft = DraftText(host, make_drafter(method), host.target.vocab_size, 1)
        context, found = [1, 2, 3, 1, 2], list[int]()
        draft.start(TextStart(context))
        for _ in range(40):
            draft.guess(3)
            said = [guess.token for guess in draft.guesses[:2]]
            found += said
            draft.observe(said if len(found) % 5 else [*said[:-1], 7])
        draft.stop()
        drafts.append(found)
    assert drafts[0] == drafts[1]
