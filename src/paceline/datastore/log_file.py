"""The log of a datastore: documents added since its index was built.

    8 bytes   b"PLALOG01"
    32 bytes  mark of the tokenizer
    then documents: 4 bytes count, 4 bytes crc32 of the tokens, int32 tokens; little-endian

A process killed while it writes leaves a partial document at the end, and a power failure may
leave zeros. Readers ignore them, and the next writer cuts them off. A damaged document before
others is passed over, even if its count is damaged. No document is empty.

A merge moves documents to a new index. `.log.NAME` is the log that belongs to the index of that
name, with the documents that it lacks. It is written before the index is put in place and renamed
to `log` afterwards; a process may be killed between, so it goes before `log` where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from shutil import copymode
from typing import IO
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.index_file import INDEX
from paceline.datastore.private_files import (
    damaged,
    draft_of,
    open_private,
    put_in_place,
    write_whole,
)
from paceline.datastore.sorting import Int32
from paceline.errors import StoreError

LOG_MAGIC = b"PLALOG01"
_MARK = 32
_BEGIN = len(LOG_MAGIC) + _MARK
_TYPE = np.dtype("<i4")
_Bits = NDArray[np.uint32]
_WORD = 4
_HEAD = 2  # words of a record before its tokens
_ANY_NAME = "[0-9a-f]" * 16


class Log:
    """A log as one process knows it: nothing is read twice.

    vocabulary: the tokenizer's mark; "" for any. index: the name of the index beside it; "" if there
    is none. A missing file is an empty log.

    documents: all documents read so far, in order. tokens: their total.

    All methods raise StoreError for a log of another tokenizer, OSError if it cannot be read or
    written.
    """

    def __init__(self, path: Path, vocabulary: str, index: str) -> None:
        self._path, self._vocabulary, self._index = path, vocabulary, index
        self._forget()
        for each in (_log_of(path, index), path):
            with suppress(FileNotFoundError, NotADirectoryError), each.open("rb") as stream:
                self._catch_up(stream)
                break

    def append(self, documents: Sequence[Int32]) -> bool:
        """Read what other processes have added, then add documents; the caller holds the
        datastore's lock.

        Returns whether the log still begins with what was known; if not, `documents` starts afresh.
        """
        _take_over(self._path, self._index)  # if a merge was killed before it did
        known, index = self._path.exists(), self._path.with_name(INDEX)
        with open_private(self._path, "r+b" if known else "w+b") as stream:
            if not known and index.exists():
                copymode(index, self._path)
            kept = self._catch_up(stream)
            data = b"".join(map(_record, documents))
            if self._end == 0:
                data = self._head() + data
            stream.seek(self._end)
            stream.truncate()
            stream.write(data)
        self._take(data)
        return kept

    def keep(self, count: int, index: str) -> None:
        """Write the log that belongs to a coming index, which includes the first `count` documents;
        the caller holds the datastore's lock."""
        _take_over(self._path, self._index)
        for stale in list(logs_to_come(self._path)):
            stale.unlink()
        if not self._path.exists():
            return
        draft = draft_of(self._path)
        write_whole(draft, [self._head(), *map(_record, self.documents[count:])])
        copymode(self._path, draft)
        # If the index stays what it is, this is its log from now on: it must be whole.
        draft.replace(_log_of(self._path, index))

    def drop(self, index: str) -> None:
        """Drop the documents that this index includes, if `keep` has prepared that; the caller holds
        the datastore's lock. Other processes notice the replaced log and read it from the start."""
        _take_over(self._path, index)

    def _forget(self) -> None:
        """Reset what is known: the documents, and where and with what the last whole one ends."""
        self.documents: list[Int32] = []
        self.tokens = self._end = 0
        self._last = b""

    def _catch_up(self, stream: IO[bytes]) -> bool:
        """Read what is new. Returns whether what was known before is still there."""
        stream.seek(max(0, self._end - len(self._last)))
        # Another log at the same path ends elsewhere, or differs in its last document.
        kept = stream.read(len(self._last)) == self._last
        if not kept:
            self._forget()
            stream.seek(0)
        new = stream.read()
        if self._end == 0:
            self._check(new[:_BEGIN])
        if self._end or len(new) >= _BEGIN:  # else its writer was killed inside the head
            self._take(new)
        return kept

    def _take(self, data: bytes) -> None:
        """Record the whole documents of what follows `_end`: the head, if that is 0, and records."""
        documents, at = _read(data, 0 if self._end else _BEGIN)
        self.documents += documents
        self.tokens += sum(map(len, documents))
        self._last = _record(documents[-1]) if documents else self._last or data[:at]
        self._end += at

    def _head(self) -> bytes:
        return LOG_MAGIC + self._vocabulary.encode().ljust(_MARK)[:_MARK]

    def _check(self, begin: bytes) -> None:
        """Raises StoreError unless the head of a log begins so."""
        ours = LOG_MAGIC.startswith(begin[: len(LOG_MAGIC)])
        head = self._head() if self._vocabulary else LOG_MAGIC + begin[len(LOG_MAGIC) :]
        if not ours or not head.isascii():
            raise damaged(self._path, ours)
        if not head.startswith(begin):
            raise StoreError(
                f"the datastore {self._path.parent} holds the tokens of a model with another "
                "tokenizer, or its log is damaged: use another folder for this model"
            )


def logs_to_come(log: Path) -> Iterator[Path]:
    """The logs beside this one that belong to an index, which may not be there."""
    return log.parent.glob(f".{log.name}.{_ANY_NAME}")


def _log_of(log: Path, index: str) -> Path:
    return log.with_name(f".{log.name}.{index}")


def _take_over(log: Path, index: str) -> None:
    with suppress(FileNotFoundError):
        put_in_place(_log_of(log, index), log)


def _record(document: Int32) -> bytes:
    data = document.astype(_TYPE, copy=False).tobytes()
    return len(document).to_bytes(4, "little") + crc32(data).to_bytes(4, "little") + data


def _read(data: bytes, at: int) -> tuple[list[Int32], int]:
    """Return the whole documents from `at` on, and where the last one ends."""
    documents, end = [], at
    while (document := _document(data, end)) is not None:
        documents.append(document)
        end += 8 + document.nbytes
    for begin in records_after(data, end):
        document = _document(data, begin)
        if begin >= end and document is not None:
            documents.append(document)
            end = begin + 8 + document.nbytes
    return documents, end


def _document(data: bytes, at: int) -> Int32 | None:
    """Return the document whose record begins there, None if that is damaged or not whole."""
    count, check = (int.from_bytes(data[at + 4 * n : at + 4 * n + 4], "little") for n in (0, 1))
    part = data[at + 8 : at + 8 + 4 * count]
    whole = count > 0 and len(part) == 4 * count and crc32(part) == check
    return np.frombuffer(part, dtype=_TYPE) if whole else None


def records_after(data: bytes, at: int) -> list[int]:
    """All places from `at` on, in steps of 4 bytes, where a whole record begins, whatever the damage
    before it; records may overlap by chance.

    They are tried together, as each crc alone would take as long as its record. With the crc of
    everything up to each place, that of any tokens is

        crc(tokens) = crc(all up to their end) ^ shifted(crc(all up to their begin), their length)

    where the crc of some bytes, `shifted` by a length, is what that many zeros make of it: a linear
    function of its bits. For 1 MB this takes a fraction of a second.
    """
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
