"""A draft model's rounds, and what its planner hears of corrections."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.draft_hosts import Ticking

from paceline.drafters import make_drafter
from paceline.drafters.draft_rounds import DraftRounds
from paceline.loop import FixedBudget
from paceline.planning.planner import TreePlanner
from paceline.records import TextStart
from paceline.targets.toy import ToyTarget


def test_trees_before_a_correction_are_not_judged_by_what_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, forgotten = TreePlanner(), list[int]()
    monkeypatch.setattr(planner, "forget_trees", forgotten.append)
    speaker = DraftRounds(ToyTarget(), make_drafter("anpd"), planner, 1, Ticking(1e-3))
    text = [3, 1, 4, 1, 5]
    speaker.start(text, TextStart(text))
    for corrections in range(3):
        for _ in range(2):
            assert speaker.say(100, 2)
            assert len(forgotten) == corrections
        text[-1] = (text[-1] + 1) % 16
        speaker.correct(len(text) - 1)


class Flickering(ToyTarget):
    """Its scores are `wrong` in every other pass, beginning with the first."""

    wrong = math.nan

    def score(self, *work: Any) -> dict[int, torch.Tensor]:
        found = super().score(*work)
        wrong = {slot: torch.full_like(rows, self.wrong) for slot, rows in found.items()}
        return wrong if self.passes % 2 else found


@pytest.mark.parametrize("wrong", [math.nan, -math.inf])
def test_scores_that_are_nan_or_forbid_all_are_no_guesses_and_no_error(wrong: float) -> None:
    target = Flickering()
    target.wrong = wrong
    speaker = DraftRounds(target, make_drafter("plain"), FixedBudget(0), 1, Ticking(1e-3))
    text = [3, 1, 4, 1, 5]
    speaker.start(text, TextStart(text))
    assert [len(speaker.say(100, 2)) for _ in range(3)] == [0, 1, 1]
    assert len(text) == 7
    speaker.stop()
