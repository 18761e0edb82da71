"""Measure products alone: 12 different 1536x8960 matrices (165 M weights), by format and rows.

    python benchmarks/products.py --json benchmarks/results/products.json

Beside each stands the time to read as many bytes, at the rate measured along with it: all threads
sum a block of floats that no cache holds. torch's own products, float32 packed and 4-bit, are
measured too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import torch

from common import options, run_script, write
from paceline.errors import UsageError, check_known
from paceline.kernels.blocks import BlockMatrix, bytes_per_row
from paceline.kernels.linear import PackedLinear
from paceline.kernels.native.calls import kernels, unavailable

OUTPUTS, INPUTS, MATRICES = 8960, 1536, 12
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
FORMATS = ("Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
SETTLE_SECONDS = 0.05  # torch's threads spin a little before they sleep
BLOCK = 256 << 20  # bytes read to measure memory bandwidth

Products = list[Callable[[torch.Tensor], torch.Tensor]]
"""Products with different matrices."""

Sized = tuple[Products, int]
"""Products and the bytes of their matrices."""


def in_blocks(format: str) -> Sized:
    """Matrices of random codes."""
    size = bytes_per_row(format, INPUTS)
    blocks = torch.randint(0, 256, (OUTPUTS, size), dtype=torch.uint8)
    made = [BlockMatrix.pack(format, blocks, INPUTS) for _ in range(MATRICES)]
    return [each.product for each in made], sum(each.nbytes for each in made)


def packed() -> Sized:
    """Four of torch's packed float32 matrices: twelve would be a gigabyte."""
    made = [PackedLinear(torch.randn(OUTPUTS, INPUTS), None) for _ in range(4)]
    return [each.forward for each in made], sum(each.weight_bytes for each in made)


def of_torch_in_4_bits() -> Sized:
    """Torch's 4-bit product for CPUs, groups of 32, activations in bfloat16."""
    codes = torch.randint(0, 16, (OUTPUTS, INPUTS), dtype=torch.int32)
    scales = torch.rand(INPUTS // 32, OUTPUTS, 2, dtype=torch.bfloat16)
    held = [torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1) for _ in range(MATRICES)]

    def product(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows.bfloat16(), weight, 32, scales
        )
        return found

    size = sum(each.nbytes + scales.nbytes for each in held)
    return [partial(product, each) for each in held], size


def seconds(run: Callable[..., Any], *inputs: Any) -> float:
    began = perf_counter()
    run(*inputs)
    return perf_counter() - began


def each_once(products: Products, rows: torch.Tensor) -> None:
    for each in products:
        each(rows)


def measured(made: Sized, repeats: int) -> dict[str, Any]:
    products, size = made
    block, rates = torch.ones(BLOCK // 4), []
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(repeats):
        rates.append(BLOCK / seconds(block.sum))
        for width in WIDTHS:
            rows = torch.randn(width, INPUTS)
            sleep(SETTLE_SECONDS)
            each_once(products, rows)  # wake threads, raise clocks
            times[width].append(seconds(each_once, products, rows))
    return {
        "bytes": size,
        "gigabytes_per_second": median(rates) / 1e9,
        "milliseconds_to_read": 1e3 * size / median(rates),
        "milliseconds": {width: 1e3 * median(each) for width, each in times.items()},
    }


def main() -> None:
    given = options(__doc__, json=Path, formats=",".join(FORMATS), repeats=7)
    names = given.formats.split(",")
    check_known("format", FORMATS, *names)
    if reason := unavailable():
        raise UsageError(f"no products to measure: {reason}")
    makers: dict[str, Callable[[], Sized]] = {
        **{name: partial(in_blocks, name) for name in names},
        "torch packed float32": packed,
        "torch int4": of_torch_in_4_bits,
    }
    found = {}
    for name, make in makers.items():
        found[name] = measured(make(), given.repeats)
        print(name, found[name], flush=True)
    shape = [MATRICES, OUTPUTS, INPUTS]
    write(given.json, {"tier": kernels().tier, "matrices": shape, "products": found})


if __name__ == "__main__":
    run_script(main)
