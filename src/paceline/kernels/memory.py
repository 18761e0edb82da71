"""Memory requests to the system: drop pages that were read from a file, use huge pages for the
rest, and reserve memory that is taken only when it is written.

A refusal changes nothing.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from time import sleep

import torch

__all__ = ["FilePages", "HugePages", "lazy_zeros"]

_MAPS = Path("/proc/self/smaps")
_DONTNEED, _HUGEPAGE, _COLLAPSE = 4, 14, 25  # advice of madvise(2)
# Private pages are allocated faster than shared ones, and a forked process has its own.
_PRIVATE = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
_LARGE = 4 << 20  # smaller regions hold no weights worth a two-megabyte huge page
_AT_ONCE, _PAUSE = 4 << 20, 0.002  # bytes, seconds
_PATIENCE = 4.0  # seconds; a shorter process would pay for the move and gain nothing


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros on the CPU that take memory page by page, as they are written.

    Raises OSError if the system does not reserve address space beyond its memory.
    """
    size = dtype.itemsize * math.prod(shape)
    block = mmap.mmap(-1, max(size, 1), **_PRIVATE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # Otherwise the first write to each huge page would take two megabytes.
        with suppress(OSError):
            block.madvise(mmap.MADV_NOHUGEPAGE)
    count = size // dtype.itemsize
    return (
        torch.frombuffer(block, dtype=dtype, count=count).view(*shape)
        if count
        else (torch.zeros(*shape, dtype=dtype))
    )


class FilePages:
    """The memory behind weights that are mapped from a file and were never written.

    The loader maps the file, and every page that was read stays resident while any tensor of the
    file is in use: packed weights would come on top of the originals. Pages given back are read
    from the file again if they are needed after all.
    """

    def __init__(self) -> None:
        regions = _regions() if _supported() else iter(())
        self._regions = [region for region in regions if region.from_file and not region.written]

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give back the pages of those tensors that are mapped from a file."""
        for tensor in tensors:
            start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
            if any(region.start <= start and end <= region.end for region in self._regions):
                _advise(start, end, _DONTNEED)


class HugePages:
    """Moves the large regions of this process to huge pages, in the background, in a few seconds.

    A pass reads all weights once; with 4 KiB pages, the processor spends much of that time finding
    the next page. The move takes up to a few seconds per gigabyte, and slows passes meanwhile: a
    process that writes only one short answer never begins it.

    patience: seconds from now until the move begins.
    """

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._turn = Lock()
        self._done = not _supported()
        if not self._done:
            timer = Timer(patience, self.settle)
            timer.name, timer.daemon = "paceline-huge-pages", True
            timer.start()

    def settle(self) -> None:
        """Finish the move now, so that it does not disturb the next measurement."""
        with self._turn:
            if not self._done:
                _collapse_large_regions()
            self._done = True


def _collapse_large_regions() -> None:
    for region in _regions():
        if region.anonymous and not region.lazy and region.end - region.start >= _LARGE:
            _advise(region.start, region.end, _HUGEPAGE)
            for first in range(region.start, region.end, _AT_ONCE):
                _advise(first, min(first + _AT_ONCE, region.end), _COLLAPSE)
                sleep(_PAUSE)  # a pass that runs meanwhile must not wait long for memory


@dataclass
class _Region:
    """A stretch of this process's memory. written: some of its pages are its own by now. lazy: it
    must not get huge pages."""

    start: int
    end: int
    from_file: bool
    anonymous: bool
    written: bool = False
    lazy: bool = False


def _supported() -> bool:
    return sys.platform == "linux" and _MAPS.exists()


def _advise(start: int, end: int, advice: int) -> None:
    """Advise on the whole pages in [start, end); ignore a refusal, which changes nothing."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(advice))


def _regions() -> Iterator[_Region]:
    """The regions of this process, as the kernel lists them."""
    region: _Region | None = None
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            if region is not None:
                yield region
            region = _region(name, words)
        elif region is not None and name == "Anonymous:":
            region.written = words[0] != "0"
        elif region is not None and name == "VmFlags:":
            region.lazy = "nh" in words
    if region is not None:
        yield region


def _region(name: str, words: list[str]) -> _Region:
    """From a line like "7f00-7f10 rw-p 00000000 00:00 0  [heap]"."""
    start, end = (int(side, 16) for side in name.split("-"))
    access, inode, label = words[0], words[3], words[4] if len(words) > 4 else "[heap]"
    from_file = inode != "0" and access.endswith("p")
    anonymous = inode == "0" and access == "rw-p" and label == "[heap]"
    return _Region(start, end, from_file, anonymous)
