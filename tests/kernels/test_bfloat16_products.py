"""Products of bfloat16, of which every tier makes the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from tests.c_library import needs_library
from tests.kernels.emulation import EMULATED

from paceline.kernels.block_layers import Bfloat16Linear
from paceline.kernels.blocks import BF16_PRODUCTS, BlockMatrix, in_floats
from paceline.kernels.linear import UnpackableError
from paceline.kernels.native.calls import Kernels, kernels, unavailable

TIERS = () if unavailable() else kernels().tiers
SIZES = [(1, 1), (17, 1), (1, 3), (33, 577), (600, 130), (64, 1536)]
pytestmark = needs_library


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    kernels().use(request.param)
    yield request.param
    kernels().use(TIERS[0])


def some(count: int, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights in bfloat16, and rows that begin at no multiple of a vector."""
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
    rows = torch.randn(1 + count * inputs, generator=generator)[1:].view(count, inputs)
    return weight, rows


def in_order(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Products added up input after input; those of two numbers of bfloat16 are exact in float32."""
    found = torch.zeros(len(rows), len(matrix))
    for weights, numbers in zip(matrix.float().T, rows.T, strict=True):
        found += numbers[:, None] * weights
    return found


def in_tiles(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """In groups of 32, each as the sums of its first inputs of two and of its second ones."""
    found = torch.zeros(len(rows), len(matrix))
    for weights, numbers in zip(matrix.split(32, 1), rows.split(32, 1), strict=True):
        first, second = (in_order(weights[:, at::2], numbers[:, at::2]) for at in (0, 1))
        found += first + second
    return found


SUMS = {"BF16_DOT": in_order, "BF16_TILES": in_tiles}


@cache
def summed(count: int, outputs: int, inputs: int, format: str) -> torch.Tensor:
    """What all tiers make of `some`."""
    weight, rows = some(count, outputs, inputs)
    return SUMS[format](weight, rows.bfloat16().float())


every_format = pytest.mark.parametrize("format", BF16_PRODUCTS)


@every_format
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_products_are_those_of_rounded_rows(
    tier: str, outputs: int, inputs: int, format: str
) -> None:
    weight, rows = some(13, outputs, inputs)
    bias = torch.arange(float(outputs))
    found = in_floats(weight, format).product(rows, bias)
    assert torch.equal(found, summed(13, outputs, inputs, format) + bias)


@every_format
@pytest.mark.parametrize("tier", EMULATED)
def test_other_processors_make_the_same_products(tier: str, format: str, emulated: Kernels) -> None:
    emulated.use(tier)
    for outputs, inputs in SIZES:
        weight, rows = some(45, outputs, inputs)
        matrix = in_floats(weight, format)
        wanted = summed(45, outputs, inputs, format)
        for count in (1, 2, 15, 17, 45):
            assert torch.equal(product(emulated, matrix, rows[:count]), wanted[:count])


def product(library: Kernels, matrix: BlockMatrix, rows: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(rows), matrix.outputs)
    addresses = rows.data_ptr(), len(rows), None, out.data_ptr()
    library.product(*matrix.native, *addresses, matrix.outputs)
    return out


@every_format
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_products_are_right(tier: str, outputs: int, inputs: int, format: str) -> None:
    weight, rows = some(5, outputs, inputs)
    found = in_floats(weight, format).product(rows).double()
    exact = rows.double() @ weight.double().T
    spread = rows.double().abs() @ weight.double().abs().T
    rounding = 2.0**-8 + inputs * 2.0**-24  # of a number of a row, of so many sums
    assert bool(((found - exact).abs() <= 1.01 * rounding * spread).all())


@every_format
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_beside_any_others(threads: int, format: str) -> None:
    weight, rows = some(64, 130, 577)
    matrix, before = in_floats(weight, format), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = matrix.product(rows)
        for width in range(1, 65):
            assert torch.equal(matrix.product(rows[:width]), together[:width])
            assert torch.equal(matrix.product(rows[-width:]), together[-width:])
    finally:
        torch.set_num_threads(before)


@every_format
def test_numbers_out_of_the_ordinary(tier: str, format: str) -> None:
    weight, rows = some(6, 40, 65)
    rows[0, 64], rows[1, 3], rows[2, 4] = float("nan"), float("inf"), 3.4e38  # that is rounded up
    rows[3], rows[4] = 0, 1e-42
    found = in_floats(weight, format).product(rows)
    assert bool(found[0].isnan().all())
    assert bool((found[1:3].isinf() | found[1:3].isnan()).all())
    assert not found[3:5].any()
    assert bool(found[5].isfinite().all())


@every_format
def test_its_numbers_are_read_as_they_are(tier: str, format: str) -> None:
    for outputs, inputs in SIZES:
        weight, _ = some(1, outputs, inputs)
        ids = torch.tensor([outputs - 1, 0])
        assert torch.equal(in_floats(weight, format).values(ids), weight[ids].float())


def test_layers_need_the_instructions(tier: str) -> None:
    weight = torch.randn(20, 33)
    if kernels().bfloat16_products:
        made = Bfloat16Linear(weight, None)(torch.ones(2, 33))
        torch.testing.assert_close(made[0], weight.bfloat16().float().sum(1), rtol=1e-4, atol=1e-4)
    else:
        with pytest.raises(UnpackableError, match="no products in bfloat16"):
            Bfloat16Linear(weight, None)
