"""A GGUF file on disk, with its header checked and its tensors memory-mapped."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError, readable
from paceline.models.gguf_header import ARRAY, MAGIC, STRING, GgufArray, GgufHeader, GgufTensor

if TYPE_CHECKING:
    import torch

SETTINGS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors that are part of a model's configuration, see `gguf_settings`."""

_VOCABULARY = "tokenizer.ggml."
_U64 = struct.Struct("<Q")


class GgufFile:
    """The metadata of a GGUF file (version 2 or 3, little endian), and its tensors by name.

    metadata: numbers and strings as they are; arrays stay in the file until they are asked for.
    architecture: e.g. "llama".

    Raises ModelError if it is no GGUF file, damaged, no whole model, or of an unknown version or
    tensor type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path, ModelError), path.open("rb") as stream:
            if stream.read(4) != MAGIC:
                raise ModelError(f"{path} is not a GGUF file: download or copy it again")
            # Copy-on-write, though nothing is ever written: torch wants a writable buffer.
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        header = GgufHeader(self._map, path)
        self.metadata, self.architecture = header.metadata, header.architecture
        self.tensors, self._header_size = header.tensors, header.position

    def mark(self) -> str:
        """64 hex digits for the header, the file's size and the tensors in `SETTINGS`: files that
        differ only in weights share them."""
        digest = sha256(memoryview(self._map)[: self._header_size])
        digest.update(_U64.pack(len(self._map)))
        for name in sorted(SETTINGS & self.tensors.keys()):
            tensor = self.tensors[name]
            digest.update(self._map[tensor.start : tensor.start + tensor.nbytes])
        return digest.hexdigest()

    def strings(self, key: str) -> list[str]:
        """The strings of an array; [] if there is no such array."""
        array = self.metadata.get(key)
        if not isinstance(array, GgufArray) or array.kind != STRING:
            return []
        spans = self._spans(array)
        return [self._map[start:stop].decode(errors="replace") for start, stop in spans]

    def write_header(self, path: Path, most: int) -> None:
        """Write the header alone, with at most `most` elements of each of the vocabulary's arrays.
        Tensors are holes: zeros that take no room on most disks. Raises OSError."""
        vocabulary = [self.metadata[key] for key in self.metadata if key.startswith(_VOCABULARY)]
        copied = 0
        with path.open("wb") as out:
            for array in vocabulary:
                if not isinstance(array, GgufArray) or array.kind == ARRAY or array.count <= most:
                    continue
                out.write(self._map[copied : array.start - _U64.size] + _U64.pack(most))
                out.write(self._map[array.start : self._end(array, most)])
                copied = array.stop
            out.write(self._map[copied : self._header_size])
            out.truncate(len(self._map))

    def _end(self, array: GgufArray, count: int) -> int:
        """Where the first `count` strings or numbers of an array end."""
        if array.kind == STRING:
            return max(stop for _, stop in islice(self._spans(array), count))
        return array.start + (array.stop - array.start) // array.count * count

    def _spans(self, array: GgufArray) -> Iterator[tuple[int, int]]:
        """Start and end of each string of an array."""
        position = array.start
        for _ in range(array.count):
            start = position + _U64.size
            position = start + _U64.unpack_from(self._map, position)[0]
            yield start, position

    def integer(self, key: str) -> int | None:
        """An integer of the metadata; None if there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) else None

    def data(self, tensor: GgufTensor) -> torch.Tensor:
        """The bytes of a tensor, uint8 [rows, bytes per row], mapped but not read yet."""
        import torch

        flat = torch.frombuffer(
            self._map, dtype=torch.uint8, offset=tensor.start, count=tensor.nbytes
        )
        rows = prod(tensor.shape[:-1])
        return flat.view(rows, tensor.nbytes // rows)

    def forget(self, tensor: GgufTensor) -> None:
        """Release the memory of a tensor's pages; reading them again loads them again."""
        first = -(-tensor.start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (tensor.start + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
