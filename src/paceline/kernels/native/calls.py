"""Calls to paceline's C library, on as many threads as torch uses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import c_int, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from paceline.kernels.native import library
from paceline.kernels.native.build import HERE
from paceline.kernels.native.cores import usable_cores
from paceline.kernels.native.signatures import SIGNATURES

_NO_MEMORY = 1
_BFLOAT16_PRODUCTS = {"avx512bf16": "BF16_DOT", "amx": "BF16_TILES"}


class Kernels:
    """The functions of a library, by their names without `pl_`, as in `kernels().product`: arguments
    are those of native/src/api.h, in order, but for the threads. Pointers are addresses; errors
    raise exceptions.

    found: see `library.find`.
    """

    def __init__(self, found: ctypes.CDLL) -> None:
        self._library = found
        self._most = usable_cores()
        found.pl_use_openmp(*_openmp())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function, made on first use."""
        function: Callable[..., Any] = getattr(self._library, f"pl_{name}")
        result, arguments = SIGNATURES[f"pl_{name}"]
        if result is c_int:
            function = _checked(function, self._most if arguments[-1] is c_int else 0)
        elif result is c_void_p:
            function = _made(function)
        setattr(self, name, function)
        return function

    @property
    def tiers(self) -> tuple[str, ...]:
        """Instruction sets that this processor has, the best first."""
        return tuple(self._library.pl_tiers().decode().split(","))

    @property
    def sources(self) -> str:
        """A hash of the sources that the library was built from."""
        return str(self._library.pl_sources(), "utf-8")

    @property
    def tier(self) -> str:
        """The tier in use."""
        return str(self._library.pl_tier(), "utf-8")

    @property
    def bfloat16_products(self) -> str:
        """The format of bfloat16 that the tier has instructions for; "" if none."""
        return _BFLOAT16_PRODUCTS.get(self.tier, "")

    def use(self, tier: str) -> None:
        """Use one of `tiers`; raises ValueError for any other."""
        if self._library.pl_use_tier(tier.encode()):
            raise ValueError(f"this processor runs {', '.join(self.tiers)}, not {tier!r}")


def _checked(function: Callable[..., int], most: int) -> Callable[..., None]:
    """The function; errors raise exceptions. most: threads, if it is told their number, else 0."""

    def call(*given: int | float | None) -> None:
        more = (min(most, torch.get_num_threads()),) if most else ()
        if failed := function(*given, *more):
            if failed == _NO_MEMORY:
                raise MemoryError("the C library ran out of memory")
            raise ValueError("sizes or ids are out of range in a call to the C library")

    return call


def _made(function: Callable[..., int | None]) -> Callable[..., int]:
    """The function; without an address, raises MemoryError."""

    def call(*given: float) -> int:
        address = function(*given)
        if address is None:
            raise MemoryError("the C library ran out of memory for counts")
        return address

    return call


def _openmp() -> tuple[int | None, int | None]:
    """In torch's own OpenMP, the addresses of GNU's entry for parallel regions and of the function
    that returns their number of threads."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found = ctypes.CDLL(str(path))
        parallel, threads = found.GOMP_parallel, found.omp_get_num_threads
    except (OSError, AttributeError):
        return None, None
    return ctypes.cast(parallel, c_void_p).value, ctypes.cast(threads, c_void_p).value


@cache
def _opened() -> tuple[Kernels | None, str]:
    found, why = library.find(HERE)
    if found is not None and hasattr(os, "register_at_fork"):
        # A forked process has no threads of OpenMP, and would wait for them forever.
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
    return None if found is None else Kernels(found), why


def kernels() -> Kernels:
    """The library's functions; raises RuntimeError if there is none, see `unavailable`."""
    found, why = _opened()
    if found is None:
        raise RuntimeError(why)
    return found


def unavailable() -> str:
    """Why there are no kernels, in one sentence; "" if there are."""
    return _opened()[1]
