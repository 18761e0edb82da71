"""A GGUF file on disk, with its header checked and its tensors memory-mapped."""

from __future__ import annotations

import mmap
import struct
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError, readable
from paceline.models.gguf_header import MAGIC, STRING, GgufArray, GgufHeader, GgufTensor

if TYPE_CHECKING:
    import torch

SETTINGS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors that are part of a model's configuration, see `gguf_settings`."""

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
        found, position = [], array.start
        for _ in range(array.count):
            start = position + _U64.size
            position = start + _U64.unpack_from(self._map, position)[0]
            found.append(self._map[start:position].decode(errors="replace"))
        return found

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
