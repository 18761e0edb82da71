"""Texts that must not be recorded leave nothing for later ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.draft_hosts import toy_host
from tests.helpers import DEFAULT_BUDGET, play

from paceline.drafters import make_drafter
from paceline.drafters.phrases import PhrasePool
from paceline.loop import Generation
from paceline.protocols import Drafter
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget

METHODS = [
    "suffix",
    "anpd:persist=true",
    "lookahead:history=true,window=3",
    "ouroboros:draft=near,length=2",
    "ouroboros:draft=near,length=2,window=3",
    "speculative:draft=near,length=2,inner=suffix,budget=8",
]


def passes(drafter: Drafter, record: bool = True) -> int:
    """Of the model and its draft model for a text, always the same one."""
    before = sum(getattr(drafter, "widths", {}).values())
    generation = Generation([3, 1, 4, 1, 5], drafter, Stopping(40), record=record)
    (rounds,) = play(ToyTarget(), [generation], DEFAULT_BUDGET)
    return len(rounds) + sum(getattr(drafter, "widths", {}).values()) - before


@pytest.mark.parametrize("method", METHODS)
def test_a_text_not_to_be_recorded_does_not_help_the_next(method: str) -> None:
    recorded, other = (make_drafter(method, toy_host()) for _ in range(2))
    first = passes(recorded)
    assert passes(other, record=False) == first
    assert passes(recorded) < first
    assert passes(other) == first


def test_phrases_of_a_text_not_to_be_recorded_are_not_written(tmp_path: Path) -> None:
    method = f"ouroboros:draft=near,length=2,window=3,phrases={tmp_path / 'pool'}"
    sizes = []
    for record in (False, True):
        drafter = make_drafter(method, toy_host())
        passes(drafter, record)
        del drafter
        pool = PhrasePool(7)
        pool.load(tmp_path / "pool", ToyTarget().vocab_size)
        sizes.append(len(pool))
    assert not sizes[0] and sizes[1]
