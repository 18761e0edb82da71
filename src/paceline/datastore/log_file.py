"""The log of a datastore: documents that were added since its index was built.

    8 bytes   b"PLALOG01"
    32 bytes  mark of the tokenizer
    then documents: 4 bytes count, 4 bytes crc32 of the tokens, int32 tokens; little-endian

A process that is killed while it writes leaves a piece of a document at the end. That is not read,
and the next one to write cuts it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from paceline.datastore.sorting import Int32
from paceline.errors import StoreError

__all__ = ["append_to_log", "read_log"]

_MAGIC = b"PLALOG01"
_MARK = 32
_BEGIN = len(_MAGIC) + _MARK
_TYPE = np.dtype("<i4")


def append_to_log(path: Path, vocabulary: str, documents: Sequence[Int32]) -> None:
    """Add documents at its end; whoever writes holds the datastore's lock.

    Raises StoreError for a log of another tokenizer, OSError where it cannot be written.
    """
    known = path.read_bytes() if path.exists() else b""
    begin = _head(vocabulary)
    if len(known) >= _BEGIN:
        _check(path, known, vocabulary)
        begin = known[: _read(known)[1]]
    with path.open("r+b" if known else "wb") as stream:
        stream.truncate(len(begin))
        if len(known) < _BEGIN:
            stream.write(begin)
        stream.seek(len(begin))
        for document in documents:
            data = document.astype(_TYPE).tobytes()
            stream.write(len(document).to_bytes(4, "little"))
            stream.write(crc32(data).to_bytes(4, "little") + data)


def read_log(path: Path, vocabulary: str) -> list[Int32]:
    """Its documents; [] where there is none. vocabulary: "" for any. Raises as `append_to_log`."""
    known = path.read_bytes() if path.exists() else b""
    if len(known) < _BEGIN:
        return []
    _check(path, known, vocabulary)
    return _read(known)[0]


def _head(vocabulary: str) -> bytes:
    return _MAGIC + vocabulary.encode().ljust(_MARK)[:_MARK]


def _check(path: Path, known: bytes, vocabulary: str) -> None:
    if known[:_BEGIN] != _head(
        vocabulary or known[len(_MAGIC) : _BEGIN].decode("ascii", "replace")
    ):
        raise StoreError(
            f"the datastore file {path} is damaged, or of a model with another tokenizer: delete "
            "it with 'paceline datastore clear' and build it again"
        )


def _read(known: bytes) -> tuple[list[Int32], int]:
    """The documents of a log, and where the last whole one ends."""
    documents, at = [], _BEGIN
    while at + 8 <= len(known):
        count, check = np.frombuffer(known, dtype="<u4", count=2, offset=at).tolist()
        data = known[at + 8 : at + 8 + 4 * count]
        if len(data) < 4 * count or crc32(data) != check:
            break
        documents.append(np.frombuffer(data, dtype=_TYPE))
        at += 8 + len(data)
    return documents, at
