"""Attention of rows that see stretches and single slots: against torch's, and bit for bit against
the same text laid out otherwise."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.c_library import needs_library
from torch.nn import functional as F

from paceline.kernels.native.calls import kernels
from paceline.kernels.slots_seen import SlotsSeen

pytestmark = needs_library

POOL = 400
Seen = tuple[int, int, list[int]]


def of(rows: list[Seen]) -> SlotsSeen:
    first, count, extra = zip(*rows, strict=True)
    return SlotsSeen(np.array(first, np.int32), np.array(count, np.int32), extra)


def drawn(heads: int, key_heads: int, size: int, value_size: int, rows: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(heads + size)
    shapes = [(heads, rows, size), (key_heads, POOL, size), (key_heads, POOL, value_size)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def some_rows(count: int, seed: int = 0) -> list[Seen]:
    """Stretches, with slots after some of them; neighbours of one text, and others."""
    rng = random.Random(seed)
    found = []
    for row in range(count):
        first = 0 if row < count // 2 else rng.randrange(200)
        stretch = rng.randrange(1, 150)
        after = range(first + stretch, min(POOL, first + stretch + 40))
        extra = sorted(rng.sample(after, rng.choice([0, 0, 1, 5])))
        found.append((first, stretch if extra or stretch else 1, extra))
    return found


SIZES = [
    (9, 3, 64, 64),
    (4, 4, 16, 16),
    (12, 2, 128, 128),
    (2, 1, 8, 8),
    (6, 2, 80, 96),
    (3, 1, 5, 7),
    (71, 1, 8, 16),
    (200, 2, 8, 8),
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_attention(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    rows = some_rows(37)
    query, key, value = drawn(*sizes, len(rows))
    key, value = key.to(dtype), value.to(dtype)
    mask = torch.full((len(rows), POOL), float("-inf"), dtype=torch.float64)
    for line, (first, count, extra) in zip(mask, rows):
        line[[*range(first, first + count), *extra]] = 0
    wanted = F.scaled_dot_product_attention(
        query[None].double(), key[None].double(), value[None].double(),
        attn_mask=mask, scale=0.2, enable_gqa=True,
    )[0].transpose(0, 1)  # fmt: skip
    for tier in kernels().tiers:
        kernels().use(tier)
        found = of(rows).attend(query, key, value, 0.2)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
    kernels().use(kernels().tiers[0])


@pytest.mark.parametrize("sizes", SIZES)
def test_a_row_is_the_same_wherever_its_slots_lie_and_beside_any_others(
    sizes: tuple[int, int, int, int],
) -> None:
    """A path through a tree, the same tokens as a chain, and each row alone."""
    length, path = 70, [3, 4, 9, 30]
    query, key, value = drawn(*sizes, 30)
    straight_key, straight_value = key.clone(), value.clone()
    for place, slot in enumerate(path):
        straight_key[:, length + place] = key[:, length + slot]
        straight_value[:, length + place] = value[:, length + slot]
    # Rows of the path are 0 to 3; the others are other nodes, and another text.
    nodes: list[Seen] = [
        (0, length, [length + slot for slot in path[: place + 1]]) for place in range(len(path))
    ]
    tree = of([*nodes, *some_rows(20)]).attend(query[:, :24], key, value, 0.3)[: len(path)]
    chain = of([(0, length + place + 1, []) for place in range(len(path))])
    assert torch.equal(chain.attend(query[:, :4], straight_key, straight_value, 0.3), tree)
    for place in range(len(path)):
        alone = of([(0, length + place + 1, [])])
        own = query[:, place : place + 1]
        assert torch.equal(alone.attend(own, straight_key, straight_value, 0.3)[0], tree[place])
    # The text elsewhere in the cache.
    moved_key, moved_value = straight_key.roll(131, 1), straight_value.roll(131, 1)
    elsewhere = of([(131, length + place + 1, []) for place in range(len(path))])
    assert torch.equal(elsewhere.attend(query[:, :4], moved_key, moved_value, 0.3), tree)


def test_tiers_agree_to_the_bit() -> None:
    rows = some_rows(23)
    query, key, value = drawn(9, 3, 64, 64, len(rows))
    found = []
    for tier in kernels().tiers:
        kernels().use(tier)
        found.append(of(rows).attend(query, key, value, 0.125))
    kernels().use(kernels().tiers[0])
    assert all(torch.equal(each, found[0]) for each in found)


def test_no_number_stays_no_number_and_in_its_row() -> None:
    rows: list[Seen] = [(0, 10, []), (20, 10, [])]
    query, key, value = drawn(9, 3, 64, 64, 2)
    key[:, 25] = float("nan")
    found = of(rows).attend(query, key, value, 0.125)
    assert found[0].isfinite().all() and found[1].isnan().all()


@pytest.mark.parametrize(
    "row", [(0, 0, []), (-1, 5, []), (0, -1, [3]), (0, 5, [4]), (0, 5, [7, 7]), (0, 5, [9, 8])]
)
def test_slots_out_of_order_are_refused(row: Seen) -> None:
    query, key, value = drawn(9, 3, 64, 64, 1)
    with pytest.raises(ValueError, match="sizes"):
        of([row]).attend(query, key, value, 1.0)
