"""Calls every function of a sanitized library on arrays that end where they have to.

LD_PRELOAD=libasan.so python sanitized_run.py libpaceline.so build/library.py
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

import numpy as np

BLOCKS = [(32, 18), (32, 20), (32, 22), (32, 24), (32, 34), (256, 144), (256, 176), (256, 210)]
POOL, SIZE = 70, 24


def exact(array: np.ndarray) -> np.ndarray:
    """A copy in memory of its own, whose end the sanitizer knows."""
    return np.array(array, copy=True, order="C")


def products(library: ctypes.CDLL, rng: np.random.Generator) -> None:
    for format, (per_block, size) in enumerate(BLOCKS):
        for outputs in (1, 16, 33):
            inputs = 2 * per_block
            blocks = exact(rng.integers(0, 256, (outputs, 2 * size), dtype=np.uint8))
            order = exact(rng.permutation(outputs).astype(np.int64))
            panels = np.empty(library.pl_packed_bytes(format, outputs, inputs), np.uint8)
            at = panels.ctypes.data
            assert not library.pl_pack(
                format, blocks.ctypes.data, order.ctypes.data, outputs, inputs, at, 2
            )
            values = np.empty((outputs, inputs), np.float32)
            assert not library.pl_values(
                format, at, outputs, inputs, order.ctypes.data, outputs, values.ctypes.data, 2
            )
            assert not library.pl_dequantise(
                format, blocks.ctypes.data, outputs, inputs, values.ctypes.data, 2
            )
            for count in (1, 2, 7):
                rows = exact(rng.standard_normal((count, inputs), dtype=np.float32))
                bias = exact(rng.standard_normal(outputs, dtype=np.float32))
                out = np.empty((count, outputs), np.float32)
                assert not library.pl_product(
                    format, at, outputs, inputs, rows.ctypes.data, count,
                    bias.ctypes.data, out.ctypes.data, outputs, 2,
                )  # fmt: skip


def attention(
    library: ctypes.CDLL, record: type[ctypes.Structure], rng: np.random.Generator
) -> None:
    for rows in (1, 2, 13):
        query = exact(rng.standard_normal((6, rows, SIZE), dtype=np.float32))
        keys = exact(rng.standard_normal((2, POOL, SIZE), dtype=np.float32))
        first = exact(rng.integers(0, 9, rows).astype(np.int32))
        count = exact(rng.integers(1, POOL - 20, rows).astype(np.int32))
        extra = exact(np.tile(np.array([POOL - 3, POOL - 1], np.int32), rows))
        begins = exact(np.arange(0, 2 * rows + 1, 2, dtype=np.int32))
        out = np.empty((rows, 6, SIZE), np.float32)
        call = record(
            rows=rows, heads=6, key_heads=2, size=SIZE, value_size=SIZE,
            query=query.ctypes.data, query_head=rows * SIZE, query_row=SIZE,
            keys=keys.ctypes.data, key_head=4 * POOL * SIZE, key_slot=4 * SIZE,
            values=keys.ctypes.data, value_head=4 * POOL * SIZE, value_slot=4 * SIZE,
            first=first.ctypes.data, count=count.ctypes.data, extra_begin=begins.ctypes.data,
            extra=extra.ctypes.data, out=out.ctypes.data, scale=0.2, kind=0,
        )  # fmt: skip
        assert not library.pl_attend(ctypes.addressof(call), 2)
        assert np.isfinite(out).all()


def module(path: Path) -> object:
    """A module by its file: importing the package would bring torch."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    signatures = module(Path(sys.argv[2]) / "signatures.py")
    for name, (gives, takes) in signatures.SIGNATURES.items():  # type: ignore[attr-defined]
        getattr(library, name).restype, getattr(library, name).argtypes = gives, takes
    for tier in library.pl_tiers().decode().split(","):
        assert not library.pl_use_tier(tier.encode())
        rng = np.random.default_rng(0)
        with np.errstate(all="ignore"):
            products(library, rng)
        attention(library, signatures.Attention, rng)  # type: ignore[attr-defined]
        sys.stdout.write(f"{tier} is clean\n")


if __name__ == "__main__":
    main()
