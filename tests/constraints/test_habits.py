"""What is learned of a model's ways under constraints."""

from __future__ import annotations

import pytest
from tests.tiny import toy_session

from paceline.constraints import Constraint, grammar_matcher
from paceline.constraints.grammar_matcher import Habits


def test_what_was_drawn_last_is_recalled_and_surer_each_time_that_it_comes() -> None:
    known = Habits()
    assert known.recall(1) is None
    sure = []
    for _ in range(4):
        known.learn(1, 7)
        sure.append((known.recall(1) or (0, 0.0))[1])
    assert sure == sorted(sure)
    assert sure[0] < 0.8 < 0.9 < sure[-1] < 1
    assert (known.recall(1) or (0, 0.0))[0] == 7
    known.learn(1, 8)
    token, unsure = known.recall(1) or (0, 0.0)
    assert token == 8
    assert unsure < sure[-1]
    for token in range(100):
        known.learn(1, token)
    assert 0 < (known.recall(1) or (0, 0.0))[1] < 0.1


def test_a_text_not_to_be_recorded_teaches_nothing() -> None:
    session, wanted = toy_session("anpd"), Constraint.choice(["yes", "no"])
    habits = session._grammars.matcher(wanted)._tokens.habits
    for record in (False, True):
        session.generate("x", constraint=wanted, record=record)
        assert bool(habits._known) == record


def test_places_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_matcher, "_MOST_KEPT", 3)
    known = Habits()
    for place in (1, 2, 3, 1, 4):
        known.learn(place, 0)
    assert [known.recall(place) is None for place in (1, 2, 3, 4)] == [False, True, False, False]
