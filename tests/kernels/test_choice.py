"""Which kind of weights is taken where scores need not be exact."""

from __future__ import annotations

import pytest
import torch
from tests.c_library import needs_library, without_library
from tests.tiny_models import new_model
from torch import nn

from paceline.kernels import choice
from paceline.kernels.block_layers import FloatLinear, Int4Linear, Int8Linear
from paceline.kernels.choice import WORTH_CHOOSING, program_kind
from paceline.kernels.linear import FastLinear, PlainLinear, UnpackableError
from paceline.targets import prepare as preparing


class Clock:
    """Stands still but for what layers say they take."""

    seconds = 0.0


class Slow(PlainLinear):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        Clock.seconds += 3
        return super().forward(rows)


class SlowForSmallOnes(Slow):
    """Slower than `Slow` in the one small layer, and free in the two others."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.out_features == 3:
            Clock.seconds += 1
            return super().forward(rows)
        return PlainLinear.forward(self, rows)


class Nowhere(FastLinear):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise UnpackableError("no such product")


@needs_library
def test_a_model_that_must_be_exact_never_loses_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preparing.prepare(new_model("llama"), exact=False).weights == "packed"  # too small
    monkeypatch.setattr(preparing, "WORTH_CHOOSING", 0)
    assert preparing.prepare(new_model("llama")).weights == "packed"
    assert preparing.prepare(new_model("llama"), "packed", exact=False).weights == "packed"
    assert preparing.prepare(new_model("llama"), "native", exact=False).weights == "native"
    assert preparing.prepare(new_model("llama"), exact=False).weights == "int4"
    with without_library(preparing):
        assert preparing.prepare(new_model("llama"), exact=False).weights == "packed"


class ForFour(PlainLinear):
    min_rows = 4

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        assert len(rows) >= self.min_rows
        return super().forward(rows)


@torch.no_grad()
def test_each_layer_gets_the_kind_that_is_fastest_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "WORTH_CHOOSING", 0)
    monkeypatch.setattr(choice, "perf_counter", lambda: Clock.seconds)
    monkeypatch.setattr(choice, "_KINDS", {"slow": Slow, "mixed": SlowForSmallOnes})
    module = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    rows = torch.randn(2, 4)
    expected = module(rows)
    choice.quicken(module, 2)
    assert [type(layer) for layer in module] == [SlowForSmallOnes, Slow]
    torch.testing.assert_close(module(rows), expected)


@torch.no_grad()
def test_layers_may_differ_in_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "WORTH_CHOOSING", 0)
    module = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32).bfloat16()])
    inputs = [torch.randn(3, 32), torch.randn(3, 32).bfloat16()]
    expected = [layer(rows) for layer, rows in zip(module, inputs)]
    choice.quicken(module, 4)
    for layer, rows, wanted in zip(module, inputs, expected):
        found = layer(rows)
        assert found.dtype == wanted.dtype
        assert (found - wanted).norm() < 0.05 * wanted.norm()


@torch.no_grad()
def test_a_layer_never_gets_fewer_rows_than_it_takes_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "WORTH_CHOOSING", 0)
    monkeypatch.setattr(choice, "_KINDS", {"for four": ForFour})
    module = nn.Sequential(nn.Linear(4, 6))
    shapes = [(1, 4), (3, 4), (4, 4), (7, 4), (2, 3, 4), (1, 1, 4)]
    inputs = [torch.randn(shape) for shape in shapes]
    expected = [module(rows) for rows in inputs]
    choice.quicken(module, 1)
    for rows, wanted in zip(inputs, expected, strict=True):
        torch.testing.assert_close(module(rows), wanted)


@needs_library
def test_programs_have_few_bits_where_there_is_much_to_read() -> None:
    small = nn.Linear(64, 64)
    assert program_kind(small, "fastest") is FloatLinear
    assert program_kind(small, "int8") is Int8Linear
    assert program_kind(small, "native") is program_kind(small, "packed") is None
    # A frozen head is no parameter, and is read all the same.
    head = PlainLinear(torch.zeros(WORTH_CHOOSING // 4 // 64, 64), None)
    assert program_kind(nn.Sequential(small, head), "fastest") is Int4Linear
