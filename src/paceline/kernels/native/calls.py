"""Calls to paceline's C library, on as many threads as torch uses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from paceline.kernels.native import library
from paceline.kernels.native.cores import usable_cores

__all__ = ["Kernels", "kernels", "unavailable"]

_NO_MEMORY = 1
_BFLOAT16_PRODUCTS = {"avx512bf16": "BF16_DOT", "amx": "BF16_TILES"}


class Kernels:
    """The functions of a library; errors raise exceptions. Pointers are addresses.

    found: see `library.load`.
    """

    def __init__(self, found: ctypes.CDLL) -> None:
        self._library = found
        found.pl_use_openmp(*_openmp())
        self.packed_bytes: Callable[[int, int, int], int] = found.pl_packed_bytes
        self._product, self._attend, self._run = found.pl_product, found.pl_attend, found.pl_run
        self._likeliest, self._run_chain = found.pl_likeliest, found.pl_run_chain
        self._run_texts = found.pl_run_texts
        self._look_up, self._look_up_lengths = found.pl_look_up, found.pl_look_up_lengths
        self.forget_ngrams: Callable[[int], None] = found.pl_ngrams_free
        self.ngrams_size: Callable[[int, int], int] = found.pl_ngrams_size
        self._count_ngrams, self._draft_ngrams = found.pl_ngrams_count, found.pl_ngrams_draft
        self._unite, self._size_tree = found.pl_unite, found.pl_size_tree
        self.cut_union: Callable[[int, int], None] = found.pl_cut_union
        self.union_ends: Callable[[int, int, int], int] = found.pl_union_ends
        self.forget_calibration: Callable[[int], None] = found.pl_calibration_free
        self._observe = found.pl_calibration_observe
        self._most = usable_cores()

    @property
    def tiers(self) -> tuple[str, ...]:
        """Instruction sets that this processor has, the best first."""
        return tuple(self._library.pl_tiers().decode().split(","))

    @property
    def sources(self) -> str:
        """A hash of the sources that the library was built from."""
        name: bytes = self._library.pl_sources()
        return name.decode()

    @property
    def tier(self) -> str:
        """The tier in use."""
        name: bytes = self._library.pl_tier()
        return name.decode()

    @property
    def bfloat16_products(self) -> str:
        """The format of bfloat16 that the tier has instructions for; "" if none."""
        return _BFLOAT16_PRODUCTS.get(self.tier, "")

    def use(self, tier: str) -> None:
        """Use one of `tiers`; raises ValueError for any other."""
        if self._library.pl_use_tier(tier.encode()):
            raise ValueError(f"this processor runs {', '.join(self.tiers)}, not {tier!r}")

    def pack(self, *arguments: Any) -> None:
        """See `pl_pack` in native/src/api.h; likewise below."""
        _check(self._library.pl_pack(*arguments, self._threads()))

    def values(self, *arguments: Any) -> None:
        """See `pl_values`."""
        _check(self._library.pl_values(*arguments, self._threads()))

    def dequantise(self, *arguments: Any) -> None:
        """See `pl_dequantise`."""
        _check(self._library.pl_dequantise(*arguments, self._threads()))

    def attend(self, attention: int) -> None:
        """See `pl_attend`; the address of an `Attention`."""
        if failed := self._attend(attention, self._threads()):
            _check(failed)

    def product(self, *arguments: Any) -> None:
        """See `pl_product`."""
        if failed := self._product(*arguments, self._threads()):
            _check(failed)

    def likeliest(self, *arguments: Any) -> None:
        """See `pl_likeliest`."""
        if failed := self._likeliest(*arguments):
            _check(failed)

    def move(self, *arguments: Any) -> None:
        """See `pl_move`."""
        _check(self._library.pl_move(*arguments))

    def look_up(self, suffixes: int) -> None:
        """See `pl_look_up`; the address of a `Suffixes`, as below."""
        if failed := self._look_up(suffixes):
            _check(failed)

    def look_up_lengths(self, suffixes: int, lengths: int) -> None:
        """See `pl_look_up_lengths`."""
        if failed := self._look_up_lengths(suffixes, lengths):
            _check(failed)

    def add_tokens(self, suffixes: int, tokens: int, count: int) -> None:
        """See `pl_add_tokens`."""
        _check(self._library.pl_add_tokens(suffixes, tokens, count))

    def new_ngrams(self, shortest: int, longest: int, width: int, most: int) -> int:
        """See `pl_ngrams_new`; free the result with `forget_ngrams`, `pl_ngrams_free`."""
        return _made(self._library.pl_ngrams_new(shortest, longest, width, most))

    def count_ngrams(self, ngrams: int, tokens: int, known: int, count: int) -> None:
        """See `pl_ngrams_count`."""
        if failed := self._count_ngrams(ngrams, tokens, known, count):
            _check(failed)

    def draft_ngrams(self, draft: int) -> None:
        """See `pl_ngrams_draft`; the address of an `NGramDraft`."""
        if failed := self._draft_ngrams(draft):
            _check(failed)

    def unite(self, union: int) -> None:
        """See `pl_unite`; the address of a `Union`."""
        if failed := self._unite(union):
            _check(failed)

    def new_calibration(self, kinds: int, memory: float) -> int:
        """See `pl_calibration_new`; free the result with `forget_calibration`."""
        return _made(self._library.pl_calibration_new(kinds, memory))

    def inherited_by(self, calibration: int, memory: float, evidence: float) -> int:
        """See `pl_calibration_heir`; as above."""
        return _made(self._library.pl_calibration_heir(calibration, memory, evidence))

    def size_tree(self, sizing: int) -> None:
        """See `pl_size_tree`; the address of a `Sizing`."""
        if failed := self._size_tree(sizing):
            _check(failed)

    def observe(self, own: int, everyone: int, tokens: int, count: int) -> None:
        """See `pl_calibration_observe`."""
        if failed := self._observe(own, everyone, tokens, count):
            _check(failed)

    def run(self, steps: int, count: int, one_pass: int) -> None:
        """See `pl_run`; the addresses of an array of `Step` and of a `Pass`."""
        if failed := self._run(steps, count, one_pass, self._threads()):
            _check(failed)

    def run_texts(self, steps: int, count: int, given: int, texts: int) -> None:
        """See `pl_run_texts`; as `run`, and the address of a `Texts`."""
        if failed := self._run_texts(steps, count, given, texts, self._threads()):
            _check(failed)

    def run_chain(self, steps: int, count: int, first: int, chain: int) -> None:
        """See `pl_run_chain`; as `run`, and the address of a `Chain`."""
        if failed := self._run_chain(steps, count, first, chain, self._threads()):
            _check(failed)

    def draft_medusa(self, heads: int) -> None:
        """See `pl_draft_medusa`; the address of a `Medusa`."""
        _check(self._library.pl_draft_medusa(heads, self._threads()))

    def draft_chimera(self, model: int) -> None:
        """See `pl_draft_chimera`; the address of a `Chimera`."""
        _check(self._library.pl_draft_chimera(model, self._threads()))

    def draft_eagle(self, model: int) -> None:
        """See `pl_draft_eagle`; the address of an `Eagle`."""
        _check(self._library.pl_draft_eagle(model, self._threads()))

    def _threads(self) -> int:
        return min(self._most, torch.get_num_threads())


def _check(failed: int) -> None:
    if failed == _NO_MEMORY:
        raise MemoryError("the C library ran out of memory")
    if failed:
        raise ValueError("sizes or ids are out of range in a call to the C library")


def _made(address: int | None) -> int:
    if address is None:
        raise MemoryError("the C library ran out of memory for counts")
    return address


def _openmp() -> tuple[int | None, int | None]:
    """In torch's own OpenMP, the addresses of GNU's entry for parallel regions and of the function
    that returns their number of threads."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found = ctypes.CDLL(str(path))
        parallel, threads = found.GOMP_parallel, found.omp_get_num_threads
    except (OSError, AttributeError):
        return None, None
    as_address = (ctypes.cast(each, ctypes.c_void_p).value for each in (parallel, threads))
    return next(as_address), next(as_address)


@cache
def _opened() -> Kernels | None:
    found = library.load()
    if found is not None and hasattr(os, "register_at_fork"):
        # A forked process has no threads of OpenMP, and would wait for them forever.
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
    return None if found is None else Kernels(found)


def kernels() -> Kernels:
    """The library's functions; raises RuntimeError if there is none, see `unavailable`."""
    found = _opened()
    if found is None:
        raise RuntimeError(library.reason())
    return found


def unavailable() -> str:
    """Why there are no kernels, in one sentence; "" if there are."""
    return "" if _opened() is not None else library.reason()
