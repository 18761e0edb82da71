"""Products in blocks: against exact ones, and every tier against the portable one."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from functools import cache

import gguf
import numpy as np
import pytest
import torch
from tests.c_library import needs_library
from tests.kernels.emulation import EMULATED

from paceline.kernels import blocks
from paceline.kernels.block_layers import BlockEmbedding, BlockLinear, Int4Linear, Int8Linear
from paceline.kernels.blocks import (
    FORMATS,
    ROUNDED,
    BlockMatrix,
    bytes_per_row,
    dequantise,
    quantised,
    rounded_blocks,
    rounded_numbers,
)
from paceline.kernels.native.calls import Kernels, kernels

pytestmark = needs_library

FORMAT = sorted(FORMATS)


@pytest.fixture(autouse=True)
def _best_tier() -> Iterator[None]:
    yield
    kernels().use(kernels().tiers[0])


def some_blocks(format: str, outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """Random codes; scales that are numbers."""
    rng = np.random.default_rng(seed)
    size = bytes_per_row(format, inputs)
    found = rng.integers(0, 256, (outputs, size), dtype=np.uint8)
    scales = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    each = found.reshape(outputs, -1, size // (inputs // (256 if format.endswith("K") else 32)))
    for place in scales.get(format, (0,)):
        values = rng.normal(0, 0.01, each.shape[:2]).astype(np.float16)
        each[:, :, place : place + 2] = values[..., None].view(np.uint8)
    return torch.from_numpy(found)


def numbers(format: str, found: torch.Tensor) -> np.ndarray:
    """What gguf says the blocks stand for: float32 [outputs, inputs]."""
    kind = gguf.GGMLQuantizationType[format]
    return gguf.quants.dequantize(found.numpy(), kind)


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """What rows are worth once they are 8-bit numbers in groups of 32: float64."""
    groups = rows.double().reshape(len(rows), -1, 32)
    scale = groups.abs().amax(dim=2, keepdim=True) / 127
    return ((groups / scale.clamp(min=1e-300)).round() * scale).reshape(rows.shape)


def sizes(format: str) -> list[tuple[int, int]]:
    if format.endswith("K"):
        return [(1, 256), (17, 512), (40, 768)]
    return [(1, 32), (15, 64), (16, 96), (17, 32), (33, 576), (64, 128)]


@pytest.mark.parametrize("format", FORMAT)
def test_numbers_are_those_of_the_file(format: str) -> None:
    for outputs, inputs in sizes(format):
        found = some_blocks(format, outputs, inputs)
        wanted = torch.from_numpy(numbers(format, found))
        assert torch.equal(dequantise(format, found, inputs), wanted)
        order = torch.randperm(outputs, generator=torch.Generator().manual_seed(1))
        matrix = BlockMatrix.pack(format, found, inputs, order)
        assert torch.equal(matrix.values(torch.arange(outputs)), wanted[order])


@pytest.mark.parametrize("format", FORMAT)
def test_products_are_right(format: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for outputs, inputs in sizes(format):
        found = some_blocks(format, outputs, inputs)
        weight = torch.from_numpy(numbers(format, found)).double()
        rows = torch.randn(9, inputs, generator=generator)
        exact = rounded(rows) @ weight.T
        made = BlockMatrix.pack(format, found, inputs).product(rows)
        spread = rounded(rows).abs() @ weight.abs().T
        # Codes of a row may differ by one where a number lies between two of them.
        assert ((made.double() - exact).abs() <= 1e-3 * spread).all()
        assert float((made.double() - exact).norm() / exact.norm()) < 1e-4


@pytest.mark.parametrize("format", FORMAT)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_beside_any_others(format: str, threads: int) -> None:
    outputs, inputs = 600, 768
    matrix = BlockMatrix.pack(format, some_blocks(format, outputs, inputs), inputs)
    rows = torch.randn(275, inputs, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = matrix.product(rows)
        for width in (1, 2, 3, 4, 5, 6, 7, 8, 13, 27, 70):
            assert torch.equal(matrix.product(rows[:width]), together[:width])
            assert torch.equal(matrix.product(rows[-width:]), together[-width:])
    finally:
        torch.set_num_threads(before)


def extreme_rows(inputs: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    signs = torch.randint(0, 2, (4, inputs), generator=generator) * 2.0 - 1
    rows = torch.randn(27, inputs, generator=generator)
    rows[0], rows[1], rows[2:4] = 1.0, -1.0, signs[:2]
    rows[4] = 0
    rows[5] *= 1e-42  # below the smallest normal number
    rows[6] *= 1e30
    rows[7, ::2] = 0
    rows[8, 5], rows[9, 6], rows[10, 7] = float("nan"), float("inf"), float("-inf")
    return rows


def extreme_blocks(format: str, outputs: int, inputs: int) -> torch.Tensor:
    """Rows of the largest codes, of the smallest, and of random ones."""
    found = some_blocks(format, outputs, inputs, seed=2)
    plain = found.clone()
    per = 256 if format.endswith("K") else 32
    each = found.view(outputs, inputs // per, -1)
    scale = 208 if format == "Q6_K" else 0
    each[0], each[1] = 255, 0
    each[2, :] = 0x80
    for row in range(3):
        each[row, :, scale : scale + 2] = plain.view_as(each)[row, :, scale : scale + 2]
        if format in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
            each[row, :, 2:4] = plain.view_as(each)[row, :, 2:4]
    return found


def every_result(library: Kernels, format: str) -> Iterator[torch.Tensor]:
    for outputs, inputs in sizes(format)[-3:]:
        found = extreme_blocks(format, max(3, outputs), inputs)
        matrix = BlockMatrix.pack(format, found, inputs)
        rows = extreme_rows(inputs)
        out = torch.empty(len(rows), matrix.outputs)
        for count in (1, 2, 3, 4, 5, 7, 12, 27):
            library.product(
                *matrix.native, rows.data_ptr(), count, None, out.data_ptr(), matrix.outputs
            )
            yield out[:count].clone()


@cache
def portable_results(format: str) -> list[torch.Tensor]:
    kernels().use("portable")
    return list(every_result(kernels(), format))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32)) or torch.equal(
        one.nan_to_num(nan=-1.25), other.nan_to_num(nan=-1.25)
    )


@pytest.mark.parametrize("format", FORMAT)
def test_every_tier_of_this_processor_gives_the_portable_bits(format: str) -> None:
    wanted = portable_results(format)
    for tier in kernels().tiers:
        kernels().use(tier)
        found = list(every_result(kernels(), format))
        assert all(same(one, other) for one, other in zip(found, wanted, strict=True)), tier


@pytest.mark.parametrize("tier", EMULATED)
@pytest.mark.parametrize("format", FORMAT)
def test_tiers_of_other_processors_give_the_portable_bits(
    format: str, tier: str, emulated: Kernels
) -> None:
    wanted = portable_results(format)
    emulated.use(tier)
    found = list(every_result(emulated, format))
    assert all(same(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("bits", ROUNDED)
def test_numbers_are_rounded_to_those_of_blocks(bits: int) -> None:
    weight = torch.randn(2, 5, 40)
    weight[0, 0] = 0.25
    weight[0, 1] = 0.0
    blocks = rounded_blocks(weight.view(10, 40), bits)
    wanted = dequantise(ROUNDED[bits], blocks, 64)[:, :40]
    assert torch.equal(rounded_numbers(weight, bits), wanted.view(2, 5, 40))


@pytest.mark.parametrize("bits", ROUNDED)
def test_pieces_of_a_matrix_are_rounded_like_the_whole(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, format = torch.randn(33, 40), ROUNDED[bits]
    whole = BlockMatrix.pack(format, rounded_blocks(weight, bits), 64)
    for numbers in (1, 100, 33 * 40):  # one row, two rows, all
        monkeypatch.setattr(blocks, "_PIECE", numbers)
        assert torch.equal(quantised(weight, bits).panels, whole.panels)


def test_no_number_stays_no_number() -> None:
    matrix = quantised(torch.randn(20, 64), 4)
    rows = torch.randn(3, 64)
    rows[1, 40] = float("nan")
    found = matrix.product(rows)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("kind", [Int4Linear, Int8Linear])
def test_layers_of_any_size_are_about_the_layer_of_floats(kind: type[BlockLinear]) -> None:
    generator = torch.Generator().manual_seed(0)
    for outputs, inputs in [(1, 1), (7, 31), (50, 33), (64, 200)]:
        layer = torch.nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight.normal_(generator=generator)
        made = kind(layer.weight, layer.bias)
        rows = torch.randn(2, 5, inputs, generator=generator)
        wanted, found = layer(rows).detach(), made(rows)
        error = float((found - wanted).norm() / wanted.norm())
        assert error < (0.12 if kind is Int4Linear else 0.02)
        assert made(rows.bfloat16()).dtype == torch.bfloat16


def test_stacked_matrices_are_one_below_the_other() -> None:
    parts = [BlockMatrix.pack("Q4_1", some_blocks("Q4_1", n, 64, n), 64) for n in (32, 16, 9)]
    whole = BlockMatrix.stack(parts)
    rows = torch.randn(5, 64)
    assert whole is not None
    assert torch.equal(whole.product(rows), torch.cat([each.product(rows) for each in parts], -1))
    assert BlockMatrix.stack(parts[::-1]) is None
    assert BlockMatrix.stack([parts[0], quantised(torch.randn(16, 64), 8)]) is None


def test_embeddings_are_rows() -> None:
    found = some_blocks("Q6_K", 40, 256)
    table = BlockEmbedding(BlockMatrix.pack("Q6_K", found, 256), torch.bfloat16)
    ids = torch.tensor([[3, 39], [0, 3]])
    wanted = torch.from_numpy(numbers("Q6_K", found))[ids].bfloat16()
    assert torch.equal(table(ids), wanted)
    with pytest.raises(ValueError, match="ids"):
        table(torch.tensor([40]))
    with pytest.raises(ValueError, match="ids"):
        table(torch.tensor([-1]))


def test_what_does_not_fit_together_is_refused() -> None:
    found = some_blocks("Q4_K", 4, 512)
    for format, data, inputs in [
        ("Q4_K", found, 511),
        ("Q4_K", found, 256),
        ("Q4_K", found.float(), 512),
        ("Q4_K", found[0], 512),
    ]:
        with pytest.raises(ValueError, match=r"multiple|blocks of"):
            BlockMatrix.pack(format, data, inputs)
    with pytest.raises(ValueError, match="row is out of range"):
        BlockMatrix.pack("Q4_K", found, 512, torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="not 'mmx'"):
        kernels().use("mmx")
    assert blocks.kernels().tier in kernels().tiers


def test_a_copy_of_a_layer_can_be_used_after_the_layer_is_gone() -> None:
    layer = Int8Linear(torch.randn(64, 64), None)
    rows = torch.randn(3, 64)
    expected, twin = layer(rows), copy.deepcopy(layer)
    _, address, *_ = twin.matrix.native
    assert address == twin.matrix.panels.data_ptr()
    del layer
    gc.collect()
    assert torch.equal(twin(rows), expected)
