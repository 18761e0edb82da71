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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.datastore.private_files import damaged, draft_of, write_whole
from paceline.datastore.sorting import Int32

INDEX_MAGIC = b"PLINDEX1"
_DIGEST = 32
_NAMED = 16  # hex digits of it that tell an index from others
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

    Raises ValueError for anything else: a file may come from anywhere.
    """

    vocabulary: str
    tokens: int
    places: int
    documents: int
    largest: int
    most: int | None = None

    def __post_init__(self) -> None:
        most = 1 if self.most is None else self.most
        numbers = self.tokens, self.places, self.documents, self.largest + 1
        known = isinstance(self.vocabulary, str) and isinstance(most, int | float)
        if not (known and all(type(one) is int for one in numbers)):
            raise ValueError("a field is of another type")
        if min(*numbers, most - 1) < 0:
            raise ValueError("a number is too small")


class Index(NamedTuple):
    """An index: its header, tokens and order, both mapped, and a name that no other index has."""

    header: Header
    tokens: Int32
    order: Int32
    name: str


def write_draft(path: Path, header: Header, tokens: Int32, order: Int32) -> tuple[Path, str]:
    """Write the draft of the file at `path`, and return the draft's path and the name of the index.
    Raises OSError."""
    text = json.dumps(asdict(header)).encode()
    text += b" " * (-(len(INDEX_MAGIC) + 8 + len(text)) % _ALIGNED)
    head = INDEX_MAGIC + len(text).to_bytes(8, "little") + text
    parts = (head, tokens.astype(_TYPE, copy=False).data, order.astype(_TYPE, copy=False).data)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    draft = draft_of(path)
    write_whole(draft, (*parts, digest.digest()))
    return draft, digest.hexdigest()[:_NAMED]


def read_index(path: Path) -> Index:
    """Read an index, the whole file to check its hash. Raises StoreError if it is damaged or not an
    index, OSError if it cannot be read."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    # Check the hash first: the header itself may be damaged.
    body = memoryview(content)[: max(0, size - _DIGEST)]
    digest = hashlib.sha256(body).digest()
    ours = content[: len(INDEX_MAGIC)] == INDEX_MAGIC
    wrong = damaged(path, ours)
    if not ours or digest != content[len(body) :]:
        raise wrong
    begin = len(INDEX_MAGIC) + 8 + int.from_bytes(body[8:16], "little")
    try:
        header = Header(**json.loads(bytes(body[16:begin])))
        numbers = np.frombuffer(body, dtype=_TYPE, offset=begin)
    except (ValueError, TypeError, RecursionError) as error:
        raise wrong from error
    tokens, order = numbers[: header.tokens], numbers[header.tokens :]
    fits = len(numbers) == header.tokens + header.places
    if not fits or int(tokens.max(initial=-1)) != header.largest:
        raise wrong
    return Index(header, tokens, order, digest.hex()[:_NAMED])
