"""The log of a datastore: documents that were added since its index was built.

    8 bytes   b"PLALOG01"
    32 bytes  mark of the tokenizer
    then documents: 4 bytes count, 4 bytes crc32 of the tokens, int32 tokens; little-endian

A process that is killed while it writes leaves a piece of a document at the end. That is not read,
and the next one to write cuts it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import numpy as np

from paceline.datastore.sorting import Int32
from paceline.errors import StoreError

__all__ = ["Log"]

_MAGIC = b"PLALOG01"
_MARK = 32
_BEGIN = len(_MAGIC) + _MARK
_TYPE = np.dtype("<i4")


class Log:
    """A log as one process knows it: what it has read is not read again.

    vocabulary: the tokenizer's mark; "" for any. A file that is not there holds nothing.

    documents: all that were read, in their order. tokens: in them.

    Raises StoreError, here and below, for a log of another tokenizer, OSError where it cannot be
    read or written.
    """

    def __init__(self, path: Path, vocabulary: str) -> None:
        self._path, self._vocabulary = path, vocabulary
        self._forget()
        with suppress(FileNotFoundError, NotADirectoryError), path.open("rb") as stream:
            self._catch_up(stream)

    def append(self, documents: Sequence[Int32]) -> bool:
        """Read what other processes have added, and add documents; the caller holds the datastore's
        lock.

        Returns whether what was known before is still there; if not, `documents` begins anew.
        """
        with self._path.open("r+b" if self._path.exists() else "w+b") as stream:
            kept = self._catch_up(stream)
            data = b"".join(map(_record, documents))
            if self._end == 0:
                data = self._head() + data
            stream.seek(self._end)
            stream.truncate()
            stream.write(data)
        self._take(data, _BEGIN if self._end == 0 else 0)
        return kept

    def drop(self, count: int) -> None:
        """The first documents go; the caller holds the datastore's lock. Other processes read the
        log anew when they see that another one is in its place."""
        left = self.documents[count:]
        if not left:
            self._path.unlink(missing_ok=True)
            return
        draft = self._path.with_name(f".{self._path.name}.new")
        draft.write_bytes(self._head() + b"".join(map(_record, left)))
        draft.replace(self._path)

    def _forget(self) -> None:
        """Nothing is known: no documents, not where the last whole one ends, nor what it is."""
        self.documents: list[Int32] = []
        self.tokens = self._end = 0
        self._last = b""

    def _catch_up(self, stream: BinaryIO) -> bool:
        """Read what is new; whether what was known before is still there."""
        stream.seek(max(0, self._end - len(self._last)))
        # Another log at the same path ends elsewhere, or its last document has other contents.
        kept = stream.read(len(self._last)) == self._last
        if not kept:
            self._forget()
            stream.seek(0)
        begin = 0
        new = stream.read()
        if self._end == 0:
            if len(new) < _BEGIN:  # killed while it was begun
                return kept
            self._check(new)
            begin = _BEGIN
        self._take(new, begin)
        return kept

    def _take(self, data: bytes, begin: int) -> None:
        """Whole documents from there on are known; `data` is what stands after `_end`."""
        documents, at = _read(data, begin)
        self.documents += documents
        self.tokens += sum(map(len, documents))
        self._last = _record(documents[-1]) if documents else self._last or data[:at]
        self._end += at

    def _head(self) -> bytes:
        return _MAGIC + self._vocabulary.encode().ljust(_MARK)[:_MARK]

    def _check(self, known: bytes) -> None:
        mark = self._head()[len(_MAGIC) :] if self._vocabulary else known[len(_MAGIC) : _BEGIN]
        if known[:_BEGIN] != _MAGIC + mark or not mark.isascii():
            raise StoreError(
                f"the datastore file {self._path} is damaged, or of a model with another "
                "tokenizer: delete it with 'paceline datastore clear' and build it again"
            )


def _record(document: Int32) -> bytes:
    data = document.astype(_TYPE, copy=False).tobytes()
    return len(document).to_bytes(4, "little") + crc32(data).to_bytes(4, "little") + data


def _read(data: bytes, at: int) -> tuple[list[Int32], int]:
    """The whole documents from `at` on, and where the last of them ends."""
    documents = []
    while at + 8 <= len(data):
        count, check = np.frombuffer(data, dtype="<u4", count=2, offset=at).tolist()
        part = data[at + 8 : at + 8 + 4 * count]
        if len(part) < 4 * count or crc32(part) != check:
            break
        documents.append(np.frombuffer(part, dtype=_TYPE))
        at += 8 + len(part)
    return documents, at
