"""The likeliest token, found by numpy or torch, is the one that transformers takes."""

from __future__ import annotations

import pytest
import torch

from paceline.scores import likeliest

KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_torch_says(kind: torch.dtype) -> None:
    rows = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)).to(kind)
    assert likeliest(rows) == rows.argmax(dim=-1).tolist()
    assert likeliest(rows[::2, 3:500]) == rows[::2, 3:500].argmax(dim=-1).tolist()
    assert likeliest(rows[:0]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_of_equal_ones(kind: torch.dtype) -> None:
    rows = torch.zeros(2, 300, dtype=kind)
    rows[1, [40, 299]] = 1
    assert likeliest(rows) == [0, 40]


@pytest.mark.parametrize("kind", KINDS)
def test_minus_infinity_is_never_taken_before_a_number(kind: torch.dtype) -> None:
    rows = torch.full((1, 64), -torch.inf, dtype=kind)
    rows[0, 17] = -3e4
    assert likeliest(rows) == [17]


def test_rows_that_are_learned_from() -> None:
    rows = torch.eye(3, requires_grad=True) * 2
    assert likeliest(rows) == [0, 1, 2]
