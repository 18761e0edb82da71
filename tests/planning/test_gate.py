"""When a drafter is asked, and what finding out may cost."""

from __future__ import annotations

import pytest

from paceline.planning.gate import SAVINGS, TRIAL, Gate


def spend(gate: Gate, rounds: int, saved: float, price: float) -> tuple[int, float]:
    """Rounds in which it asked, and what was lost, in milliseconds; plain decoding takes 10."""
    asked, lost = 0, 0.0
    for _ in range(rounds):
        gate.earn(10.0, 10.0)
        if gate.asks(price):
            asked += 1
            lost += price
            gate.judge(saved)
    return asked, lost


def test_it_stays_open_while_it_gains() -> None:
    assert spend(Gate(), 500, 0.05, 3.0)[0] == 500


@pytest.mark.parametrize("price", [0.1, 1.0, 4.0])
def test_what_never_gains_costs_a_hundredth(price: float) -> None:
    gate = Gate()
    spend(gate, 3 * TRIAL, -0.1, price)
    asked, lost = spend(gate, 5000, -0.1, price)
    assert asked >= TRIAL
    assert lost <= SAVINGS * 5000 * 10.0 + TRIAL * price


def test_it_opens_for_a_trial_that_may_turn_out_well() -> None:
    gate = Gate()
    spend(gate, 20, -0.2, 2.0)
    assert not gate.is_open
    assert spend(gate, 400, +0.5, 2.0)[0] > 150
    assert gate.is_open


def test_a_full_purse_holds_a_few_passes() -> None:
    gate = Gate()
    for _ in range(100_000):
        gate.earn(10.0, 10.0)
    assert gate.can_pay(40.0) and not gate.can_pay(41.0)


def test_the_next_text_begins_open_with_the_purse() -> None:
    gate = Gate()
    spend(gate, 30, -0.2, 100.0)
    heir = gate.heir()
    assert not gate.is_open and heir.is_open
    assert gate.gain < heir.gain < 0
    assert spend(heir, 20, -0.2, 100.0)[0] < TRIAL  # it does not need a whole trial again
