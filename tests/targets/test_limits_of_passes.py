"""Passes in one call at their limits: the model's last position, and memory that runs out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.c_library import needs_library
from tests.tiny_models import new_model, some_prompt

from paceline.targets import kv_cache
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import open_target
from paceline.tree import EMPTY, Tree

pytestmark = needs_library


def opened(**changes: int) -> CausalLMTarget:
    return open_target(new_model("llama", **changes))


def test_positions_beyond_the_last_are_refused_and_not_read_from_other_memory() -> None:
    target = opened(max_position_embeddings=64)
    assert target.steps is not None
    slot = target.open(some_prompt(60))
    wide = Tree(tuple(range(20)), (-1,) * 20)
    assert bool(target.score({slot: wide})[slot].isfinite().all())
    assert bool(target.score({slot: Tree.chain([1] * 4)})[slot].isfinite().all())
    with pytest.raises(ValueError, match="out of range"):
        target.score({slot: Tree.chain([1] * 5)})


@pytest.mark.parametrize("positions", [1, 5, -5])
def test_a_context_shorter_than_the_first_trial_is_no_trap(positions: int) -> None:
    target = opened(max_position_embeddings=positions)
    assert (target.steps is None) == (positions > 0)  # a negative limit is none
    slot = target.open([1])
    assert bool(target.score({slot: EMPTY})[slot].isfinite().all())


def test_a_pool_that_could_not_grow_serves_the_others_and_grows_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = opened(max_position_embeddings=1 << 20)
    chained, other = target.open(some_prompt(20)), target.open(some_prompt(9))
    expected = target.follow(chained, 20, [1]).numbers.copy()
    allocate, left = kv_cache._allocate, [1]

    def some(states: torch.Tensor, slots: int) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError
        return allocate(states, slots)

    monkeypatch.setattr(kv_cache, "_allocate", some)
    with pytest.raises(MemoryError):
        target._texts.make_room({other: 200_000})
    # Some layers have moved.
    assert np.array_equal(target.follow(chained, 20, [1]).numbers, expected)
    left[0] = 100
    target._texts.make_room({other: 200_000})
    assert np.array_equal(target.follow(chained, 20, [1]).numbers, expected)
