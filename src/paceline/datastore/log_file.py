"""The log of a datastore: documents added since its index was built.

    8 bytes   b"PLALOG01"
    32 bytes  mark of the tokenizer
    then documents: 4 bytes count, 4 bytes crc32 of the tokens, int32 tokens; little-endian

A process killed while it writes leaves a partial document at the end. Readers ignore it, and the
next writer cuts it off. A damaged document before others is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import copymode
from typing import IO
from zlib import crc32

import numpy as np

from paceline.datastore.index_file import INDEX
from paceline.datastore.private_files import draft_of, open_private, put_in_place
from paceline.datastore.sorting import Int32
from paceline.errors import StoreError

__all__ = ["LOG_MAGIC", "Log"]

LOG_MAGIC = b"PLALOG01"
_MARK = 32
_BEGIN = len(LOG_MAGIC) + _MARK
_TYPE = np.dtype("<i4")


class Log:
    """A log as one process knows it: nothing is read twice.

    vocabulary: the tokenizer's mark; "" for any. A missing file is an empty log.

    documents: all documents read so far, in order. tokens: their total.

    All methods raise StoreError for a log of another tokenizer, OSError if it cannot be read or
    written.
    """

    def __init__(self, path: Path, vocabulary: str) -> None:
        self._path, self._vocabulary = path, vocabulary
        self._forget()
        with suppress(FileNotFoundError, NotADirectoryError), path.open("rb") as stream:
            self._catch_up(stream)

    def append(self, documents: Sequence[Int32]) -> bool:
        """Read what other processes have added, then add documents; the caller holds the
        datastore's lock.

        Returns whether the log still begins with what was known; if not, `documents` starts afresh.
        """
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
        self._take(data, _BEGIN if self._end == 0 else 0)
        return kept

    def drop(self, count: int) -> None:
        """Drop the first `count` documents; the caller holds the datastore's lock. Other processes
        notice the replaced log and read it from the start."""
        left = self.documents[count:]
        if not left:
            self._path.unlink(missing_ok=True)
            return
        draft = draft_of(self._path)
        with open_private(draft, "wb") as stream:
            stream.write(self._head() + b"".join(map(_record, left)))
        put_in_place(draft, self._path)

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
        begin = 0
        new = stream.read()
        if self._end == 0:
            if len(new) < _BEGIN:  # its writer was killed inside the head
                return kept
            self._check(new)
            begin = _BEGIN
        self._take(new, begin)
        return kept

    def _take(self, data: bytes, begin: int) -> None:
        """Record the whole documents from `begin` on; `data` is what follows `_end`."""
        documents, at = _read(data, begin)
        self.documents += documents
        self.tokens += sum(map(len, documents))
        self._last = _record(documents[-1]) if documents else self._last or data[:at]
        self._end += at

    def _head(self) -> bytes:
        return LOG_MAGIC + self._vocabulary.encode().ljust(_MARK)[:_MARK]

    def _check(self, known: bytes) -> None:
        mark = (
            self._head()[len(LOG_MAGIC) :] if self._vocabulary else known[len(LOG_MAGIC) : _BEGIN]
        )
        if not known.startswith(LOG_MAGIC) or not mark.isascii():
            raise StoreError(
                f"the datastore file {self._path} is damaged: delete it with 'paceline datastore "
                f"clear {self._path.parent}' and build it again"
            )
        if known[:_BEGIN] != LOG_MAGIC + mark:
            raise StoreError(
                f"the datastore {self._path.parent} holds the tokens of a model with another "
                "tokenizer, or its log is damaged: use another folder for this model"
            )


def _record(document: Int32) -> bytes:
    data = document.astype(_TYPE, copy=False).tobytes()
    return len(document).to_bytes(4, "little") + crc32(data).to_bytes(4, "little") + data


def _read(data: bytes, at: int) -> tuple[list[Int32], int]:
    """Return the whole documents from `at` on, and where the last one ends."""
    documents, end = [], at
    while at + 8 <= len(data):
        count, check = np.frombuffer(data, dtype="<u4", count=2, offset=at).tolist()
        part = data[at + 8 : at + 8 + 4 * count]
        if len(part) < 4 * count:
            break
        at += 8 + len(part)
        if crc32(part) == check:
            documents.append(np.frombuffer(part, dtype=_TYPE))
            end = at
    return documents, end
