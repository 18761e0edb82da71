"""Slots move as indexing moves them."""

from __future__ import annotations

import pytest
import torch
from tests.c_library import needs_library

from paceline.kernels.moving import SlotMover

pytestmark = needs_library


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_slots_go_where_they_are_told_to(dtype: torch.dtype) -> None:
    for slots in (9, 30):
        keys = torch.randn(1, 3, slots, 5).to(dtype)
        values = torch.randn(1, 1, slots, 8).to(dtype)[..., :7]
        expected = [each.clone() for each in (keys, values)]
        mover = SlotMover([keys, values])
        assert mover.can_move
        for sources, places in (([4, 6, 8], [3, 4, 5]), ([7], [0])):
            mover.move(sources, places)
            for each in expected:
                each[:, :, places] = each[:, :, sources]
            assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])


def test_what_lies_otherwise_is_left_to_torch() -> None:
    assert not SlotMover([torch.randn(1, 2, 5, 4).transpose(2, 3)]).can_move
