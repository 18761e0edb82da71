"""What trials of sources that take time may cost, and when reading a prompt for them pays."""

from __future__ import annotations

import random

import pytest

from paceline.drafters.costly_sources import CostlySources
from paceline.planning.cost_curve import CostCurve, CostPoint

PASS = 10.0
"""Milliseconds."""


def play(
    costly: CostlySources,
    gained: float,
    milliseconds: float,
    rounds: int,
    others: float = 0.0,
    target: float = PASS,
    prompt: int = 0,
) -> tuple[int, float]:
    """Rounds with one source that gains so many tokens on average where it is asked, and others
    that take so many milliseconds, as `target` says of a pass; how often it was asked, and the
    passes that all of them took. prompt: tokens it has to read first, each in a hundredth of a
    pass."""
    rng = random.Random(7)
    asked, passes = 0, 0.0
    for _ in range(rounds):
        tokens, drafting = 1, others
        unread = 0 if asked else prompt
        if costly.asks("draft", 0.0, unread):
            asked, drafting = asked + 1, others + milliseconds + unread * PASS / 100
            tokens += int(rng.random() < gained)
            costly.took("draft", drafting - others, unread)
            costly.judge("draft", 0.0, tokens - 1, 0.5, 1, 0)
        costly.played(100, 1, tokens, drafting, target)
        passes += 1 + drafting / PASS
    return asked, passes


@pytest.mark.parametrize("milliseconds", [0.5, 2.0, 9.0])
def test_one_that_gains_nothing_costs_what_the_budget_gets(milliseconds: float) -> None:
    asked, passes = play(CostlySources(["draft"]), 0.0, milliseconds, 2000)
    assert 1 <= asked < 500
    assert passes < 2000 * 1.02 + 2.0


def test_one_that_gains_more_than_it_takes_is_asked() -> None:
    asked, _ = play(CostlySources(["draft"]), 0.6, 2.0, 500)
    assert asked > 450


def test_a_text_is_judged_by_its_own_drafts_not_by_longer_ones_of_others() -> None:
    costly = CostlySources(["draft"])
    assert play(costly, 0.9, 0.5, 40)[0] > 30
    for _ in range(40):  # long drafts, and worth it
        if costly.asks("draft", 0.0):
            costly.took("draft", 4 * PASS)
            costly.judge("draft", 0.0, 12, 12.0, 1, 0)
        costly.played(100, 1, 13, 4 * PASS, PASS)
    costly.begin()
    asked, _ = play(costly, 0.6, 2.0, 200)
    assert asked > 180


def test_a_slow_first_time_is_no_price() -> None:
    """It also makes what is kept for later."""
    costly = CostlySources(["draft"])
    asked, slow = 0, True
    for _ in range(30):
        tokens, drafting = 1, 0.0
        if costly.asks("draft", 0.0):
            asked += 1
            tokens, drafting, slow = 3, 3 * PASS if slow else 0.3 * PASS, False
            costly.took("draft", drafting)
            costly.judge("draft", 0.0, 2, 2.0, 1, 0)
        costly.played(100, 1, tokens, drafting, PASS)
    assert asked > 25


def test_drafts_behind_sure_guesses_have_a_price_of_their_own() -> None:
    """They are long and add little; where nothing is known, drafts are short and worth it."""
    costly, asked = CostlySources(["draft"]), [0, 0]
    for place in range(400):
        known = place % 2
        sure, drafting = (3.0, 0.9 * PASS) if known else (0.0, 0.2 * PASS)
        if now := costly.asks("draft", sure):
            asked[known] += 1
            costly.took("draft", drafting, sure=sure)
            costly.judge("draft", sure, 1 - known, 1.0 - known, 1, 0)
        costly.played(100, 1, 1 + 3 * known + (1 - known) * now, now * drafting, PASS)
    assert asked[0] > 150 and asked[1] < 60


def test_a_token_is_worth_no_more_than_a_pass_however_slow_rounds_are() -> None:
    asked, _ = play(CostlySources(["draft"]), 0.5, 6.5, 600, others=2 * PASS)
    assert asked < 150


def test_the_first_text_pays_little_for_trials() -> None:
    """A pass for all of them together."""
    names = ("medusa", "chimera", "draft")
    costly, lost = CostlySources(names), 0.0
    for _ in range(48):
        for name in names:
            if costly.asks(name, 0.0):
                costly.took(name, 2.0)
                costly.judge(name, 0.0, 0, 0.0, 1, 0)
                lost += 2.0 / PASS
        costly.played(100, 1, 1, 0.0, PASS)
    assert 0 < lost < 2.0


def seasoned(gained: int) -> CostlySources:
    """Many rounds in which asking took a tenth of a pass, and reading a token a hundredth."""
    costly = CostlySources(["draft"])
    for _ in range(100):
        if costly.asks("draft", 0.0):
            costly.took("draft", PASS / 10)
            costly.judge("draft", 0.0, gained, float(gained), 1, 0)
        costly.played(100, 1, 1 + gained, PASS / 10, PASS)
    costly.took("draft", PASS / 10 + 200 * PASS / 100, unread=200)
    return costly


@pytest.mark.parametrize(
    ("unread", "left", "asked"),
    [(0, 10, True), (3, 10, True), (200, 1000, True), (200, 5, False), (4000, 50, False)],
)
def test_a_prompt_is_read_where_the_text_goes_on_for_long_enough(
    unread: int, left: int, asked: bool
) -> None:
    assert seasoned(1).asks("draft", 0.0, unread, left) == asked


@pytest.mark.parametrize(("sure_rounds", "asked"), [(0, True), (19, False)])
def test_a_prompt_is_read_where_enough_rounds_are_expected_to_need_the_source(
    sure_rounds: int, asked: bool
) -> None:
    """It adds a token where the others know nothing, which is one round in `sure_rounds` + 1."""
    costly = CostlySources(["draft"], promises={"draft": 1.0})
    for number in range(400):
        sure = 5.0 if number % (sure_rounds + 1) else 0.0
        if costly.asks("draft", sure):
            costly.took("draft", PASS / 10)
            costly.judge("draft", sure, int(not sure), float(not sure), 1, 0)
        costly.played(100, 1, 2, 0.0, PASS)
    costly.took("draft", PASS / 10 + 200 * PASS / 100, unread=200)
    costly.ended(800)
    costly.begin()
    assert costly.asks("draft", 0.0, unread=200, left=60) == asked


def test_a_text_that_repeats_itself_does_not_speak_for_the_next() -> None:
    """Its many tokens a round would make too few rounds of what the next one has left."""
    costly = seasoned(1)
    for _ in range(100):
        if costly.asks("draft", 0.0):
            costly.took("draft", PASS / 10)
            costly.judge("draft", 0.0, 1, 1.0, 1, 0)
        costly.played(100, 1, 6, 0.0, PASS)
    costly.ended(600)
    costly.begin()
    assert costly.asks("draft", 0.0, 200, 100)


def test_what_was_read_does_not_hold_back_who_read_it() -> None:
    """Nor does it make the tokens of that round dear."""
    costly = seasoned(1)
    costly.begin()
    assert costly.asks("draft", 0.0, 200, 100)
    costly.took("draft", PASS / 10 + 5 * PASS, unread=200)
    costly.judge("draft", 0.0, 0, 1.0, 1, 0)
    costly.played(100, 1, 1, PASS / 10 + 5 * PASS, PASS)
    assert costly.asks("draft", 0.0)


@pytest.mark.parametrize("tokens", [1, 10])
def test_tokens_cost_what_they_cost_in_this_text(tokens: int) -> None:
    """However many a pass brought in the text before."""
    costly = CostlySources(["draft"], promises={"draft": 1.0})
    for _ in range(2):  # the first time does not count
        costly.took("draft", 0.3 * PASS)
    for _ in range(100):
        costly.played(100, 1, tokens, 0.0, PASS)
    costly.ended(100 * tokens)
    costly.begin()
    assert play(costly, 1.0, 0.3 * PASS, 40)[0] > 35


def test_the_price_of_reading_is_that_of_many_tokens() -> None:
    costly = seasoned(1)
    for _ in range(20):  # drafts that took a little longer
        costly.took("draft", PASS, unread=8)
    assert costly.asks("draft", 0.0, 200, 1000)


def test_what_the_first_draft_makes_is_not_the_price_of_reading() -> None:
    costly = CostlySources(["draft"])
    costly.took("draft", 500 * PASS, unread=200)
    for _ in range(40):
        costly.took("draft", PASS / 10)
        costly.judge("draft", 0.0, 1, 1.0, 1, 0)
        costly.played(100, 1, 2, PASS / 10, PASS)
    costly.begin()
    assert costly.asks("draft", 0.0, 200, 1000)


def test_small_claims_that_never_come_true_are_found_out() -> None:
    costly = CostlySources([], ["lookup"])
    asked = []
    for number in range(400):
        if costly.asks("lookup", 0.0):
            asked.append(number)
            costly.judge("lookup", 0.0, 0, 0.3, 2, 1)
        costly.played(100, 1, 1, 0.0, PASS)
    assert len([number for number in asked if number >= 200]) <= 200 // 8 + 1


def test_trials_that_save_nothing_become_rare_until_one_does() -> None:
    costly = CostlySources(["draft"])

    def asked(rounds: int, tokens: int) -> int:
        count = 0
        for _ in range(rounds):
            if now := costly.asks("draft", 0.0):
                costly.took("draft", PASS / 100)
                costly.judge("draft", 0.0, tokens, float(tokens), 1, 0)
            costly.played(100, 1, 1 + now * tokens, now * PASS / 100, PASS)
            count += now
        return count

    assert asked(200, 0)
    assert 1 <= asked(1000, 0) < 10
    assert asked(1000, 1) > 700


def test_one_that_gains_nothing_reads_no_prompts() -> None:
    costly = seasoned(0)
    assert not costly.asks("draft", 0.0, 1000, 10**6)
    for _ in range(200):  # the budget holds no more than what is saved for
        costly.played(100, 1, 1, 0.0, PASS)
        assert not costly.asks("draft", 0.0, 1000, 10**6)


def test_short_prompts_that_took_no_longer_than_asking_say_nothing_about_long_ones() -> None:
    costly = CostlySources(["draft"])
    for _ in range(100):
        costly.took("draft", 1.0)
        costly.judge("draft", 0.0, 1, 1.0, 1, 0)
        costly.played(100, 1, 2, 1.0, PASS)
    for _ in range(5):
        costly.took("draft", 0.5, unread=10)
    assert not costly.asks("draft", 0.0, unread=4000, left=50)
    assert costly.asks("draft", 0.0, unread=0, left=50)


@pytest.mark.parametrize(("gained", "least", "most"), [(0, 2, 40), (1, 380, 400)])
def test_rounds_beside_prompts_count_though_their_passes_are_not_timed(
    gained: int, least: int, most: int
) -> None:
    costly, asked = CostlySources(["draft"]), 0
    for _ in range(400):
        if now := costly.asks("draft", 0.2):
            asked += 1
            costly.took("draft", 1.0)
            costly.judge("draft", 0.2, gained, 0.5, 3, 1)
        costly.played(100, 3, 1 + gained * now, 1.0, None)
    assert least <= asked <= most


def test_a_text_that_falls_behind_beside_prompts_asks_nobody() -> None:
    costly = seasoned(1)
    assert costly.asks("draft", 0.0)
    costly.begin()
    for _ in range(5):
        costly.played(100, 1, 1, 2 * PASS, None)
    assert not costly.asks("draft", 0.0)


def test_what_has_shone_elsewhere_is_soon_given_up_where_it_gains_nothing() -> None:
    costly, asked = seasoned(2), 0
    costly.begin()
    for place in range(48):
        sure = (0.0, 0.3, 0.7)[place % 3]
        if costly.asks("draft", sure):
            asked += 1
            costly.took("draft", PASS / 2)
            costly.judge("draft", sure, 0, 0.0, 1, 0)
        costly.played(100, 1, 1, 0.0, PASS)
    assert 2 <= asked < 16
    costly.begin()
    assert costly.asks("draft", 0.0)


def test_texts_are_expected_to_be_as_long_as_others_were() -> None:
    costly = CostlySources(["draft"])
    assert costly.left(0, 20) == 20
    for _ in range(40):
        costly.ended(400)
    assert costly.left(0, 1000) == pytest.approx(400, rel=0.02)
    assert costly.left(100, 1000) == pytest.approx(300, rel=0.02)
    assert 0 < costly.left(5000, 1000) < 100
    assert costly.left(0, 30) == 30


def test_rows_that_make_a_pass_cheaper_are_no_merit() -> None:
    """Passes of three rows are costly for a while, those of five are not; without the source's rows no
    plan would have had three."""
    curve = CostCurve(
        (CostPoint(1, 0, PASS), CostPoint(3, 0, 4 * PASS), CostPoint(5, 0, 1.1 * PASS))
    )
    costly, asked = CostlySources(["draft"], curve=curve), 0
    for _ in range(400):
        if costly.asks("draft", 0.0):
            asked += 1
            costly.took("draft", 2.0)
            costly.judge("draft", 0.0, 0, 0.0, 5, 2)
        costly.played(100, 5, 2, 2.0, 1.1 * PASS)
    assert 1 <= asked < 100


def test_what_was_measured_with_its_parts_is_believed_where_the_others_are_not_sure() -> None:
    def asked(promise: float, sure: float) -> bool:
        return CostlySources(["eagle"], promises={"eagle": promise}).asks("eagle", sure, unread=60)

    assert asked(1.5, 0.0) and asked(1.5, 0.3)
    assert not asked(1.5, 3.0), "what the others know already it does not add"
    assert not asked(0.3, 0.0), "that would not pay for its time"


@pytest.mark.parametrize(("gained", "shares"), [(1.2, (0.9, 1.0)), (0.0, (0.0, 0.2))])
def test_a_promise_is_forgotten_for_what_comes_true(
    gained: float, shares: tuple[float, float]
) -> None:
    costly = CostlySources(["draft"], promises={"draft": 1.5})
    asked, _ = play(costly, gained, 2.0, 100)
    assert shares[0] <= asked / 100 <= shares[1]


def test_a_text_that_begins_beside_another_changes_nothing_there() -> None:
    """Of both what sources are worth is learned, but what a text has lost is its own."""
    one = seasoned(1)
    for _ in range(200):
        one.played(100, 1, 1, 2 * PASS, PASS)  # far behind plain decoding
    assert not one.asks("draft", 0.0)
    other = one.for_text()
    assert other.asks("draft", 0.0) and not one.asks("draft", 0.0)
    other.ended(1000)
    assert one.left(0, 1000) > 200


@pytest.mark.parametrize("asking", [False, True])
def test_a_pause_of_the_machine_silences_nobody_for_the_rest_of_a_text(asking: bool) -> None:
    """Whether it falls into the time of asking or beside it."""
    costly, asked = seasoned(2), 0
    costly.begin()
    for number in range(100):
        pause = 1000 * PASS if number == 20 else 0.0
        if now := costly.asks("draft", 0.0):
            asked += 1
            costly.took("draft", PASS / 10 + pause * asking)
            costly.judge("draft", 0.0, 2, 2.0, 1, 0)
        costly.played(100, 1, 1 + 2 * now, now * PASS / 10 + pause, PASS)
    assert asked > 90


@pytest.mark.parametrize("promise", [0.0, 1.5])
def test_a_source_that_was_slow_while_the_machine_was_busy_is_asked_again(promise: float) -> None:
    """For a while passes take three times as long, and asking nine times; texts come after that."""
    now = [PASS]

    def costs(context: int) -> CostCurve:
        return CostCurve((CostPoint(1, 0, now[0]),))

    costly = CostlySources(["draft"], promises={"draft": promise}, costs=costs)
    assert play(costly, 0.9, 2.0, 64)[0] > 50
    now[0] *= 3
    assert play(costly, 0.9, 18.0, 64, target=now[0])[0] > 5
    now[0] = PASS
    asked = 0
    for _ in range(6):
        costly.begin()
        asked += play(costly, 0.9, 2.0, 60, prompt=60)[0]
        costly.ended(100)
    assert asked > 200
