"""Memory requests to the system: drop pages that were read from a file, use huge pages for
weights, and reserve memory that is taken only when it is written.

A refusal changes nothing.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import torch

_MAPS = Path("/proc/self/smaps")
_DONTNEED = 4  # advice of madvise(2)
# Private pages are allocated faster than shared ones, and a forked process has its own.
_PRIVATE = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
_LINE, _HUGE, _CHUNK = 64, 2 << 20, 16 << 20  # bytes
_WORTH_GIVING = 64 << 10  # bytes of a tensor; for less, regions need not be listed


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros on the CPU that take memory page by page, as they are written. Raises OSError if the
    system does not reserve address space beyond its memory."""
    count = math.prod(shape)
    if not count:
        return torch.zeros(*shape, dtype=dtype, device="cpu")
    # On huge pages, the first write to each would take two megabytes.
    block = _private(count * dtype.itemsize, "MADV_NOHUGEPAGE")
    return torch.frombuffer(block, dtype=dtype, count=count).view(*shape)


class FilePages:
    """The memory behind weights that are mapped from a file and were never written.

    The loader maps the file, and every page that was read stays resident while any tensor of the
    file is in use: packed weights would come on top of the originals. Pages given back are read
    from the file again if they are needed after all.
    """

    @cached_property
    def _unwritten(self) -> list[tuple[int, int]]:
        """Where they begin and end. The kernel takes long to list them: it counts pages."""
        with suppress(OSError):  # not every system has such a list, or lets everyone read it
            return [*_unwritten_regions()]
        return []

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give back the pages of those tensors that are mapped from a file, small ones aside."""
        for tensor in tensors:
            start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
            if tensor.nbytes >= _WORTH_GIVING and any(
                begin <= start and end <= stop for begin, stop in self._unwritten
            ):
                _give_back(start, end)


class WeightMemory:
    """Memory for the matrices in blocks of one model, on huge pages where the system has them.

    A pass reads all weights once; with 4 KiB pages, the processor spends a part of that time
    finding the next page. Small tensors share huge pages, and a chunk of memory is freed with the
    last tensor in it.
    """

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._used = 0

    def empty(self, size: int) -> torch.Tensor:
        """A uint8 tensor [size] that begins at a line of the processor's caches. Raises OSError if
        there is no memory."""
        if size == 0:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        first = -(-self._used // _LINE) * _LINE
        if self._chunk is None or first + size > len(self._chunk):
            least = max(size, _CHUNK)
            self._chunk, first = _private(least + -least % _HUGE, "MADV_HUGEPAGE"), 0
        self._used = first + size
        return torch.frombuffer(self._chunk, dtype=torch.uint8, count=size, offset=first)


def return_freed() -> None:
    """Return freed memory that the C library keeps for itself, as glibc does of small blocks."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(ctypes.c_size_t(0))


def _private(size: int, advice: str) -> mmap.mmap:
    """Zeros, with advice for the system, which may know nothing of it or refuse."""
    block = mmap.mmap(-1, size, **_PRIVATE)
    if (known := getattr(mmap, advice, None)) is not None:
        with suppress(OSError):
            block.madvise(known)
    return block


def _give_back(start: int, end: int) -> None:
    """Drop the whole pages in [start, end); a refusal changes nothing."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        where, size = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
        ctypes.CDLL(None).madvise(where, size, ctypes.c_int(_DONTNEED))


def _unwritten_regions() -> Iterator[tuple[int, int]]:
    """Private regions of files whose pages are all the file's own still: none was written, and is
    in memory or swapped out."""
    found: tuple[int, int] | None = None
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        name, *words = line.split()
        if not name.endswith(":"):  # as "7f00-7f10 rw-p 00000000 00:00 0  [heap]"
            start, end = (int(side, 16) for side in name.split("-"))
            found = (start, end) if words[3] != "0" and words[0].endswith("p") else None
        elif found is not None and name in ("Anonymous:", "Swap:"):  # in this order
            if words[0] != "0":
                found = None
            elif name == "Swap:":
                yield found
