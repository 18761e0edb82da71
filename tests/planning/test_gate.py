"""When a drafter is asked, and what finding out may cost."""

from __future__ import annotations

import pytest

from paceline.planning.gate import SAVINGS, TRIAL, Gate, TrialBudget


def spend(
    gate: Gate, budget: TrialBudget, rounds: int, saved: float, price: float
) -> tuple[int, float]:
    """Rounds in which it asked, and what was lost, in passes of plain decoding."""
    asked, lost = 0, 0.0
    for _ in range(rounds):
        budget.earn(1.0)
        if gate.asks(price):
            asked += 1
            lost += price
            gate.judge(-price if saved < 0 else saved, saved)
    return asked, lost


def new() -> tuple[Gate, TrialBudget]:
    budget = TrialBudget()
    return Gate(budget), budget


def test_it_stays_open_while_it_gains() -> None:
    assert spend(*new(), 500, 0.05, 0.3)[0] == 500


@pytest.mark.parametrize("price", [0.01, 0.1, 0.4, 1.0, 2.5])
def test_what_never_gains_costs_a_hundredth(price: float) -> None:
    """However costly a trial is, it comes again."""
    gate, budget = new()
    spend(gate, budget, 3 * TRIAL, -0.1, price)
    asked, lost = spend(gate, budget, 5000, -0.1, price)
    assert asked >= TRIAL
    assert lost <= SAVINGS * 5000 + TRIAL * price


def test_a_trial_ends_early_where_every_round_loses_much() -> None:
    """So text does not lag far behind plain decoding, and what was not lost pays for other trials."""
    gate, budget = new()
    assert spend(gate, budget, TRIAL, -2.5, 2.5)[0] == 2
    rounds, asked = 0, 0
    while not asked and rounds < 5000:
        asked, rounds = spend(gate, budget, 1, -2.5, 2.5)[0], rounds + 1
    assert asked == 1 and spend(gate, budget, TRIAL, -2.5, 2.5)[0] == 1
    for _ in range(1000):
        budget.save_for(TRIAL * 2.5)
        budget.earn(1.0)
        if budget.can_pay(TRIAL * 2.5):
            break
    else:
        raise AssertionError("a whole trial was paid for two rounds")


def test_a_pause_of_the_machine_in_one_round_does_not_close_it() -> None:
    gate, _ = new()
    for saved in (-0.5, -30.0, -0.5, *[2.0] * 20):
        gate.judge(saved, saved)
        assert gate.is_open


def test_it_opens_for_a_trial_that_may_turn_out_well() -> None:
    gate, budget = new()
    spend(gate, budget, 20, -0.2, 0.2)
    assert not gate.is_open
    assert spend(gate, budget, 400, +0.5, 0.2)[0] > 150
    assert gate.is_open


def test_a_full_budget_holds_a_few_passes_or_a_trial() -> None:
    budget = TrialBudget()
    for _ in range(1000):
        budget.earn(1.0)
    assert budget.can_pay(3.99) and not budget.can_pay(4.01)
    for _ in range(1000):
        budget.save_for(8.0)
        budget.earn(1.0)
    assert budget.can_pay(7.99) and not budget.can_pay(8.01)
    budget.earn(1.0)  # nobody waits for it any more: nothing is lost
    assert budget.can_pay(7.99)


def test_the_next_text_rests_where_the_last_one_did() -> None:
    gate, budget = new()
    spend(gate, budget, 30, -0.2, 10.0)
    inherited = gate.inherited()
    assert not gate.is_open and not inherited.is_open
    assert spend(inherited, budget, 20, -0.2, 10.0)[0] == 0


@pytest.mark.parametrize("rounds", [1, 3, 5, 20])
def test_many_short_texts_are_as_one_long_one(rounds: int) -> None:
    gate, budget = new()
    lost = 0.0
    for _ in range(2000 // rounds):
        lost += spend(gate, budget, rounds, -0.5, 1.0)[1]
        gate = gate.inherited()
    assert lost <= TRIAL + SAVINGS * 2000 + TRIAL


def test_after_a_text_that_gained_a_bad_round_does_not_close_it() -> None:
    gate, budget = new()
    spend(gate, budget, 100, 0.5, 1.0)
    inherited = gate.inherited()
    assert 0 < inherited._here.mean < gate._here.mean
    assert spend(inherited, budget, 3, -0.5, 1.0)[0] == 3 and inherited.is_open


def test_a_text_without_luck_does_not_cost_those_after_it() -> None:
    gate, budget = new()
    spend(gate, budget, 100, 0.3, 10.0)
    unlucky = gate.inherited()
    spend(unlucky, budget, 20, -0.5, 10.0)
    assert not unlucky.is_open
    inherited = unlucky.inherited()
    assert inherited.is_open and 0 < inherited._here.mean < 0.15
    assert spend(inherited, budget, 40, 0.3, 10.0)[0] == 40


def test_luck_of_long_ago_is_forgotten() -> None:
    """Texts in which it gains nothing are noticed soon, one by one, and after many of them it rests
    for good, however much was gained before."""
    gate, budget = new()
    spend(gate, budget, 1000, 0.3, 10.0)
    asked = []
    for _ in range(60):
        gate = gate.inherited()
        asked.append(spend(gate, budget, 40, -0.3, 10.0)[0])
    assert all(0 < rounds <= TRIAL for rounds in asked[:10])
    assert sum(asked[40:]) == 0


def test_a_first_text_without_luck_is_not_the_last_word() -> None:
    gate, budget = new()
    asked = spend(gate, budget, 40, -0.1, 10.0)[0]
    assert asked < 40 and not gate.is_open
    second = gate.inherited()
    assert second.is_open
    for _ in range(3):
        spend(second, budget, 40, -0.1, 10.0)
        second = second.inherited()
    assert not second.is_open


def test_the_first_trial_spans_texts() -> None:
    """Text that begins during it has no first trial of its own: those of short texts would add up."""
    gate, budget = new()
    assert spend(gate, budget, 15, -0.05, 10.0)[0] == 15
    second = gate.inherited()
    assert spend(second, budget, 40, -0.05, 10.0)[0] == 9


def test_what_is_far_from_gaining_rests_from_its_first_text_on() -> None:
    gate, budget = new()
    spend(gate, budget, 40, -0.3, 10.0)
    assert not gate.inherited().is_open


def test_a_trial_costs_what_it_loses() -> None:
    """A drafter that loses next to nothing is tried again and again. When a trial fails after two
    others, three times what it lost is paid."""
    tried = {}
    for loss in (0.02, 0.2):
        gate, budget = new()
        spend(gate, budget, 200, -1.0, 0.2)
        tried[loss] = 0
        for _ in range(2000):
            budget.earn(1.0)
            if gate.asks(0.2):
                tried[loss] += 1
                gate.judge(-loss, -loss)
    assert tried[0.2] * 0.2 <= SAVINGS * 2000 + TRIAL * 0.2
    third = SAVINGS * 2000 / 3
    assert third / 2 <= tried[0.02] * 0.02 <= third + TRIAL * 0.2


@pytest.mark.parametrize(
    ("saved", "more"),
    [((-0.1,), 0.0), ((-0.1,) * 2, 0.1), ((-0.1,) * 4, 0.5), ((-0.1, -0.1, 0.1, -0.1), 0.1)],
)
def test_losses_of_trials_in_a_row_are_paid_more_than_once(
    saved: tuple[float, ...], more: float
) -> None:
    budget = TrialBudget()
    budget.receive(4.0)
    for one in saved:
        budget.tried(one)
    assert budget.can_pay(3.99 - more) and not budget.can_pay(4.01 - more)


def test_a_long_pause_delays_trials_no_longer_than_a_short_one() -> None:
    trials = TrialBudget()
    for lost in (0.5, 1000.0):
        trials.receive(-lost)
    for _ in range(900):
        trials.earn(1.0)
    assert trials.can_pay(4.0)
