"""The index file of a datastore: tokens and the order of their places, memory-mapped.

8 bytes   b"PLINDEX1"
8 bytes   length of the header; all numbers are little-endian
…         header: a JSON object, padded with spaces to a multiple of 64
4 each    tokens, int32; a border is -1
4 each    their places in order, int32
32 bytes  sha256 of everything before
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from paceline.datastore.private_files import draft_of, open_private
from paceline.datastore.sorting import Int32
from paceline.errors import StoreError

__all__ = ["INDEX", "INDEX_MAGIC", "Header", "read_index", "write_draft"]

INDEX_MAGIC = b"PLINDEX1"
_DIGEST = 32
_ALIGNED = 64
_TYPE = np.dtype("<i4")

INDEX = "index"
"""Its name in a datastore's folder."""


@dataclass(frozen=True)
class Header:
    """The header of an index.

    vocabulary: mark of the tokenizer whose ids it holds. tokens: their number, borders included.
    places, documents: their numbers. largest: the largest id, -1 without tokens. most: tokens that
    it may grow to; None for the usual limit.
    """

    vocabulary: str
    tokens: int
    places: int
    documents: int
    largest: int
    most: int | None = None


def write_draft(path: Path, header: Header, tokens: Int32, order: Int32) -> Path:
    """Write the draft of the file at `path`, and return the draft's path. Raises OSError."""
    text = json.dumps(asdict(header)).encode()
    text += b" " * (-(len(INDEX_MAGIC) + 8 + len(text)) % _ALIGNED)
    draft = draft_of(path)
    digest = hashlib.sha256()
    with open_private(draft, "wb") as stream:
        head = INDEX_MAGIC + len(text).to_bytes(8, "little") + text
        for part in (head, tokens.astype(_TYPE, copy=False).data, order.astype(_TYPE).data):
            digest.update(part)
            stream.write(part)
        stream.write(digest.digest())
        stream.flush()
        os.fsync(stream.fileno())  # before it replaces what a power failure must not take
    return draft


def read_index(path: Path) -> tuple[Header, Int32, Int32]:
    """Read an index: header, tokens and order, both mapped. Reads the whole file to check its hash.

    Raises StoreError if the file is damaged or not an index, OSError if it cannot be read.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    damaged = StoreError(
        f"the datastore file {path} is damaged: delete it with 'paceline datastore clear "
        f"{path.parent}' and build it again"
    )
    # Check the hash first: the header itself may be damaged.
    body = memoryview(content)[: max(0, size - _DIGEST)]
    if hashlib.sha256(body).digest() != bytes(content[len(body) :]) or body[:8] != INDEX_MAGIC:
        raise damaged
    begin = len(INDEX_MAGIC) + 8 + int.from_bytes(body[8:16], "little")
    try:
        header = Header(**json.loads(bytes(body[16:begin])))
        numbers = np.frombuffer(body, dtype=_TYPE, offset=begin)
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged from error
    if len(numbers) != header.tokens + header.places:
        raise damaged
    return header, numbers[: header.tokens], numbers[header.tokens :]
