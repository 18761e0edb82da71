"""A hundred texts in a row with one drafter: stores stay within their limits, nothing piles up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.draft_hosts import toy_host
from tests.live_tensors import live_tensors
from tests.prompt_parts import toy_drafter

from paceline.drafters import Host, Ouroboros, Speculative
from paceline.loop import Generation, decode
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget

TEXTS, MOST = 24, 20


def small_toy(sharpness: float = 2.0) -> ToyTarget:
    """It keeps a row for every token, and soon has said them all."""
    return ToyTarget(order=1, sharpness=sharpness)


DRAFTERS: dict[str, Callable[[Host], Drafter]] = {
    "speculative": lambda draft: Speculative(toy_host(), draft=draft, inner="anpd", length=3),
    "ouroboros": lambda draft: Ouroboros(
        toy_host(), draft=draft, window=3, level=3, guesses=3, length=3, most=MOST, budget=16
    ),
    "chimera": lambda draft: toy_drafter("chimera:cache=16"),
}


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("name", DRAFTERS)
def test_tensors_and_stores_do_not_grow(name: str, planned: bool) -> None:
    draft = small_toy(3.0)
    drafter, target = DRAFTERS[name](Host(draft)), small_toy()
    budget = TreePlanner() if planned else 24
    counts, held = [], []
    for place in range(TEXTS):
        prompt = [place % 16, 3 + place % 11, 5, place % 7]
        sampler = Sampler(seed=place, temperature=place % 2)
        for _ in decode(target, [Generation(prompt, drafter, Stopping(9), sampler)], budget):
            held.append(len(getattr(drafter, "pool", ())))
        if place in (TEXTS // 2 - 1, TEXTS - 1):  # drawn texts, with their noise
            found = live_tensors()
            rows = len(draft._rows) + len(target._rows)
            counts.append((found.number - rows, found.memory))
    (first, before), (last, after) = counts
    assert last <= first + 2 and after <= before + (1 << 12)
    assert max(held) <= MOST
    if name == "ouroboros" and not planned:
        assert max(held) == MOST  # or there was nothing to limit
