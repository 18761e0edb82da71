"""Calls to paceline's C library, on as many threads as torch uses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

import torch

from paceline.kernels.native import library
from paceline.kernels.native.build import HERE
from paceline.kernels.native.cores import usable_cores

_NO_MEMORY = 1
_BFLOAT16_PRODUCTS = {"avx512bf16": "BF16_DOT", "amx": "BF16_TILES"}


class Kernels:
    """The functions of a library; errors raise exceptions. Pointers are addresses.

    found: see `library.find`.
    """

    def __init__(self, found: ctypes.CDLL) -> None:
        self._library = found
        self._most = usable_cores()
        found.pl_use_openmp(*_openmp())
        # Arguments are those of native/src/api.h, in order, but for the threads.
        self.packed_bytes: Callable[[int, int, int], int] = found.pl_packed_bytes
        self.pack = self._on_threads(found.pl_pack)
        self.values = self._on_threads(found.pl_values)
        self.dequantise = self._on_threads(found.pl_dequantise)
        self.attend = self._on_threads(found.pl_attend)
        self.product = self._on_threads(found.pl_product)
        self.likeliest = _checked(found.pl_likeliest)
        self.move = _checked(found.pl_move)
        self.run = self._on_threads(found.pl_run)
        self.run_texts = self._on_threads(found.pl_run_texts)
        self.run_chain = self._on_threads(found.pl_run_chain)
        self.draft_medusa = self._on_threads(found.pl_draft_medusa)
        self.draft_chimera = self._on_threads(found.pl_draft_chimera)
        self.draft_eagle = self._on_threads(found.pl_draft_eagle)
        self.look_up = _checked(found.pl_look_up)
        self.look_up_lengths = _checked(found.pl_look_up_lengths)
        self.add_tokens = _checked(found.pl_add_tokens)
        # What `new_` and `inherited_by` return is freed by `forget_`.
        self.new_ngrams = _made(found.pl_ngrams_new)
        self.forget_ngrams: Callable[[int], None] = found.pl_ngrams_free
        self.ngrams_size: Callable[[int, int], int] = found.pl_ngrams_size
        self.count_ngrams = _checked(found.pl_ngrams_count)
        self.draft_ngrams = _checked(found.pl_ngrams_draft)
        self.unite = _checked(found.pl_unite)
        self.cut_union: Callable[[int, int], None] = found.pl_cut_union
        self.union_ends: Callable[[int, int, int], int] = found.pl_union_ends
        self.new_calibration = _made(found.pl_calibration_new)
        self.inherited_by = _made(found.pl_calibration_heir)
        self.forget_calibration: Callable[[int], None] = found.pl_calibration_free
        self.size_tree = _checked(found.pl_size_tree)
        self.observe = _checked(found.pl_calibration_observe)

    def _on_threads(self, function: Callable[..., int]) -> Callable[..., None]:
        """The function, given the number of threads last; errors raise exceptions."""
        most = self._most

        def call(*arguments: int | float | None) -> None:
            if failed := function(*arguments, min(most, torch.get_num_threads())):
                _raise(failed)

        return call

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


def _checked(function: Callable[..., int]) -> Callable[..., None]:
    """The function; errors raise exceptions."""

    def call(*arguments: int | float | None) -> None:
        if failed := function(*arguments):
            _raise(failed)

    return call


def _raise(failed: int) -> NoReturn:
    if failed == _NO_MEMORY:
        raise MemoryError("the C library ran out of memory")
    raise ValueError("sizes or ids are out of range in a call to the C library")


def _made(function: Callable[..., int | None]) -> Callable[..., int]:
    """The function; without an address, raises MemoryError."""

    def call(*arguments: float) -> int:
        address = function(*arguments)
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
    address = ctypes.c_void_p
    return ctypes.cast(parallel, address).value, ctypes.cast(threads, address).value


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
