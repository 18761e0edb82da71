"""Find the records of a log that follow damage: a damaged length says nothing about what follows.

A record is a count, the crc32 of its tokens, and count tokens, each of 4 bytes.

All places where a record may begin are tried together, as each crc alone would take as long as the
record is. With the crc of everything up to each place, that of any tokens is

    crc(tokens) = crc(all up to their end) ^ shifted(crc(all up to their begin), their length)

where the crc of some bytes, `shifted` by a length, is what that many zeros make of it: a linear
function of its bits. For 1 MB this takes a fraction of a second.
"""

from __future__ import annotations

from itertools import accumulate
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = ["records_after"]

_Bits = NDArray[np.uint32]

_WORD = 4
_HEAD = 2  # words before the tokens


def records_after(data: bytes, at: int) -> list[int]:
    """All places from `at` on, in steps of 4 bytes, where a whole record begins; records may overlap
    by chance."""
    words = np.frombuffer(data, dtype="<u4", count=(len(data) - at) // _WORD, offset=at)
    room = np.arange(len(words) - _HEAD, 0, -1)
    counts = words[: len(room)].astype(np.int64)
    # Zeros, which a power failure may leave, would fit: the crc of nothing is 0.
    places = np.flatnonzero((counts > 0) & (counts <= room))
    if not len(places):
        return []
    counts, begins = counts[places], places + _HEAD
    known = _growing_crcs(data, at, len(words))
    found = known[begins + counts] ^ _shifted(known[begins], counts)
    fits = found == words[places + 1]
    return [at + _WORD * int(place) for place in places[fits]]


def _growing_crcs(data: bytes, at: int, words: int) -> _Bits:
    """The crcs of the first 0, 1, 2, … words from `at` on."""
    view = memoryview(data)
    parts = (view[begin : begin + _WORD] for begin in range(at, at + _WORD * words, _WORD))
    crcs = accumulate(parts, lambda known, part: crc32(part, known), initial=0)
    return np.fromiter(crcs, dtype=np.uint32, count=words + 1)


def _shifted(crcs: _Bits, counts: NDArray[np.int64]) -> _Bits:
    """What `counts` words of zeros after them make of crcs, apart from their own crc."""
    crcs, zeros = crcs.copy(), bytes(_WORD)
    each_bit = [crc32(zeros, 1 << bit) ^ crc32(zeros) for bit in range(32)]
    shift = np.array(each_bit, dtype=np.uint32)
    for bit in range(int(counts.max()).bit_length()):
        chosen = np.flatnonzero(counts >> bit & 1)
        crcs[chosen] = _mapped(shift, crcs[chosen])
        shift = _mapped(shift, shift)  # twice as many words
    return crcs


def _mapped(function: _Bits, values: _Bits) -> _Bits:
    """Apply a linear function, given as its value for each bit."""
    result = np.zeros_like(values)
    for bit, value in enumerate(function):
        result ^= (values >> np.uint32(bit) & np.uint32(1)) * value
    return result
