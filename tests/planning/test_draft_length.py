"""How far a draft model drafts, by times that are given."""

from __future__ import annotations

import random

import pytest

from paceline.planning.cost_curve import CostCurve, CostPoint, LiveCosts
from paceline.planning.draft_length import LONGEST, DraftLength


def length(plan: DraftLength, claim: float) -> int:
    """Guesses in a row that all claim the same."""
    claims: list[float] = []
    while plan.pays(claims):
        claims.append(claim)
    return len(claims)


def seasoned(
    draft: float, target: float, right: float, claim: float | None = None, gained: int = 1
) -> DraftLength:
    """After many rounds of that kind. right: share of the guesses that come true, and by default
    what they claim."""
    plan = DraftLength()
    claim = right if claim is None else claim
    for step in range(400):
        plan.drafted(draft, gained)
        came_true = (step + 1) * right % 1 < right
        plan.judge([claim], int(came_true))
        plan.played(target, target + draft, 1 + int(came_true), 0)
    return plan


def test_before_any_time_is_known_drafts_are_short() -> None:
    assert length(DraftLength(), 0.99) == 4
    assert length(DraftLength(longest=2), 0.99) == 2


def test_one_guess_is_always_made() -> None:
    """Whether guessing pays at all is the planner's question, who must see guesses to answer it."""
    assert length(seasoned(draft=50, target=1, right=0.1), 0.1) == 1


@pytest.mark.parametrize(("draft", "longest"), [(1.0, 5), (3.0, 2), (5.0, 1)])
def test_the_costlier_a_draft_pass_the_shorter_the_draft(draft: float, longest: int) -> None:
    """At 0.7 per guess and 10 ms per pass a token takes some (10 + draft) / 1.7 ms, and a draft of
    n goes on while 0.7 ** (n + 1) of that is more than a draft pass."""
    plan = seasoned(draft, target=10.0, right=0.7)
    assert plan.token_milliseconds == pytest.approx((10 + draft) / 1.7, rel=0.1)
    assert abs(length(plan, 0.7) - longest) <= 1
    assert length(seasoned(draft / 4, target=10.0, right=0.7), 0.7) > length(plan, 0.7)


def test_a_token_takes_what_it_took_in_rounds_like_the_last_ones() -> None:
    """Short rounds after a long one are quick and gain little: a token costs more there, and drafts
    become longer again."""
    plan = DraftLength()
    for milliseconds, tokens in [(36.0, 5), *[(21.0, 2)] * 6]:
        plan.drafted(5.0, 1)
        plan.judge([0.95], 1)
        plan.played(16.0, milliseconds, tokens, 0)
    assert plan.token_milliseconds == pytest.approx(9.5, rel=0.1)
    assert length(plan, 0.95) > 1


def test_a_doubtful_guess_ends_the_draft() -> None:
    plan = seasoned(draft=1.0, target=10.0, right=0.7)
    plan.judge([0.05], 0)
    assert plan.pays([0.9])
    assert plan.pays([0.9, 0.9])
    assert not plan.pays([0.9, 0.05])


def test_guesses_are_believed_by_what_came_true() -> None:
    """A draft model that is always right though it never claims so may go on for long."""
    modest = seasoned(draft=1.0, target=10.0, right=1.0, claim=0.3)
    boaster = seasoned(draft=1.0, target=10.0, right=0.2, claim=0.9)
    assert length(modest, 0.3) >= 10
    assert length(boaster, 0.9) == 1


def test_a_pass_that_brings_several_guesses_is_worth_more() -> None:
    single = seasoned(draft=4.0, target=10.0, right=0.8)
    several = seasoned(draft=4.0, target=10.0, right=0.8, gained=4)
    assert length(several, 0.8) > length(single, 0.8)


def test_rows_that_cost_time_shorten_the_draft() -> None:
    free = seasoned(draft=1.0, target=10.0, right=0.8)
    costly = seasoned(draft=1.0, target=10.0, right=0.8)
    costly.live.curve = CostCurve((CostPoint(1, 0, 10.0), CostPoint(33, 0, 74.0)))
    assert 1 <= length(costly, 0.8) < length(free, 0.8)


def test_a_token_is_worth_no_more_than_a_pass() -> None:
    """Else a draft model that is always wrong and slow would make its own guesses look precious."""
    plan = seasoned(draft=100.0, target=10.0, right=0.0)
    assert plan.token_milliseconds == pytest.approx(10.0)


def test_what_a_pass_takes_is_measured_and_what_its_guesses_add_is_known() -> None:
    """Passes take three times as long as the curve says, and five rows twice as long as one."""
    plan = DraftLength(LiveCosts(None, CostCurve((CostPoint(1, 0, 5.0), CostPoint(5, 0, 10.0)))))
    for _ in range(100):
        plan.drafted(100.0, 1)
        plan.scored(4, 4)
        plan.played(30.0, 430.0, 1, 0)
    assert plan.token_milliseconds == pytest.approx(15.0)


def test_who_cuts_guesses_gets_few_of_them() -> None:
    """And more as soon as all are wanted."""
    plan = seasoned(draft=0.1, target=10.0, right=0.9)
    wanted = length(plan, 0.9)
    assert wanted > 8
    for _ in range(3):
        plan.scored(length(plan, 0.9), 2)
        assert length(plan, 0.9) == 3
    plan.scored(3, 0)
    assert length(plan, 0.9) == 1
    lengths = []
    for _ in range(5):
        lengths.append(length(plan, 0.9))
        plan.scored(lengths[-1], lengths[-1])
    assert lengths == sorted(lengths) and lengths[:3] == [1, 2, 4]
    assert length(plan, 0.9) == wanted


def test_an_outlier_changes_little() -> None:
    plan = seasoned(draft=1.0, target=10.0, right=0.7)
    before = length(plan, 0.7)
    plan.drafted(5000.0, 1)
    plan.played(5000.0, 9000.0, 1, 0)
    assert abs(length(plan, 0.7) - before) <= 1


def test_a_clock_that_stands_still_stops_nothing() -> None:
    assert length(seasoned(draft=0.0, target=0.0, right=0.5), 0.5) == LONGEST


def test_the_end_of_a_chain_is_where_guesses_no_longer_pay() -> None:
    """Whatever they claim, and whatever comes before them."""
    rng = random.Random(0)
    for curve in (None, CostCurve((CostPoint(1, 0, 10.0), CostPoint(33, 0, 74.0)))):
        plan = seasoned(draft=0.3, target=10.0, right=0.8)
        plan.live.curve = curve
        for _ in range(200):
            claims = [rng.uniform(0.6, 1.0) for _ in range(rng.randrange(1, 6))]
            plan.judge(claims, rng.randrange(1, 1 + len(claims)))
            while not plan.pays(claims):
                del claims[-1]
            end, chain = plan.end(claims), [rng.uniform(0.3, 1.0)]
            while end.goes_on(chain):
                assert plan.pays([*claims, *chain])
                chain.append(rng.uniform(0.3, 1.0))
            assert not plan.pays([*claims, *chain])


def test_the_longest_draft_ends_in_the_table_too() -> None:
    for curve in (None, CostCurve((CostPoint(1, 0, 10.0), CostPoint(65, 0, 10.1)))):
        plan = seasoned(draft=0.01, target=10.0, right=0.99)
        plan.live.curve = curve
        for before in (0, 1, LONGEST - 1):
            claims = [0.99] * before
            assert plan.pays(claims)
            assert len(plan.end(claims).least) == LONGEST - before


def test_a_guess_of_little_confidence_is_the_last() -> None:
    end = DraftLength().end([], confidence=0.4)
    assert end.goes_on([0.4, 0.5]) and not end.goes_on([0.9, 0.3])


def test_the_first_pass_of_a_draft_says_at_most_what_others_take() -> None:
    plan, same = (seasoned(draft=1.0, target=10.0, right=0.7) for _ in range(2))
    for _ in range(50):
        plan.drafted(3.0, 1, first=True)
    assert length(plan, 0.7) == length(same, 0.7)
    for _ in range(50):
        plan.drafted(0.1, 1, first=True)
    assert length(plan, 0.7) > length(same, 0.7)


STEEP = CostCurve((CostPoint(1, 0, 10.0), CostPoint(5, 0, 18.0)))


def test_what_follows_a_doubtful_guess_is_not_worth_a_row() -> None:
    """A row costs 2 ms, a token 10, and every other guess is right: a guess needs two chances in
    five for what follows it, and a little more for its own row in the drafter's pass."""
    plan = seasoned(draft=1.0, target=10.0, right=0.5)
    assert plan.worth == pytest.approx(1.0 / 4 / plan.token_milliseconds / 0.5, rel=0.1)
    plan.live.curve = STEEP
    worth = (2 + 1 / 4) / plan.token_milliseconds / 0.5
    assert plan.worth == pytest.approx(worth, rel=0.1)
    assert plan.end((), worth=plan.worth).worth == plan.worth
    assert DraftLength(LiveCosts(None, STEEP)).worth == 0.0  # nothing is known of tokens


def test_a_token_of_one_text_among_many_is_worth_its_share_of_a_pass() -> None:
    share = CostCurve((CostPoint(1, 0, 1.0), CostPoint(5, 0, 1.1)))
    plan = DraftLength(LiveCosts(lambda context: share))
    for _ in range(4):
        plan.played(10.0, 11.0, 1, 50)
    assert plan.token_milliseconds == 1.0


def test_observed_costs_replace_the_curve() -> None:
    found: list[int] = []

    def costs(context: int) -> CostCurve | None:
        found.append(context)
        return STEEP if context > 100 else None

    flat = CostCurve((CostPoint(1, 0, 10.0), CostPoint(5, 0, 10.1)))
    plan = DraftLength(LiveCosts(costs, flat))
    plan.played(10.0, 11.0, 1, 50)
    assert plan.live.curve == flat
    for step in range(32):
        plan.played(10.0, 11.0, 1, 150 + step)
    assert plan.live.curve == STEEP and len(found) == 3
