"""The header of a GGUF file, read without trusting it.

The file may come from anywhere, so every count and length is checked against the file's size before
anything of that size is allocated.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path

from paceline.errors import ModelError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # if the file names none
_MOST_DIMENSIONS = 4
_MOST_NESTED = 4
_MOST_STRINGS = 1 << 24  # in one array; no vocabulary comes near
_LEAST_PAIR, _LEAST_TENSOR = 13, 24  # least bytes of a key with its value, and of a tensor's entry

# What files beside a model's say that they are.
_BESIDE = {
    "adapter": "an adapter",
    "imatrix": "an importance matrix",
    "mmproj": "a projector of images or sounds",
}

STRING, ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_NUMBERS = {
    kind: struct.Struct(f"<{code}")
    for kind, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of the metadata: type number and count of its elements, and where they are."""

    kind: int
    count: int
    start: int
    stop: int


Value = bool | int | float | str | GgufArray


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file.

    type: e.g. "Q4_K" or "F32". shape: in torch's order. start: of its bytes in the file.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


class GgufHeader:
    """Reads a header once, from first to last byte.

    metadata: by key. architecture: the family of models, e.g. "llama". tensors: by name. position:
    the end of the header.

    path: for messages. Raises ModelError if the file is damaged, no whole model, or has something
    that is not read here.
    """

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path = data, path
        self._size = len(data)
        self.position = len(MAGIC)
        version = self._number(_U32)
        if version & 0xFFFF == 0:
            raise self._unread("it is big-endian, which paceline does not read")
        if version not in _VERSIONS:
            known = " and ".join(map(str, _VERSIONS))
            raise self._unread(f"it has version {version}, but paceline reads {known}")
        tensor_count = self._count("tensors", _LEAST_TENSOR)
        pairs = self._count("keys", _LEAST_PAIR)
        self.metadata: dict[str, Value] = {}
        for _ in range(pairs):
            key = self._name("a key")
            if key in self.metadata:
                raise self._damage(f"it has the key {key!r} twice")
            self.metadata[key] = self._value(self._number(_U32))
        self._check_model()  # first: such files name no architecture, and are not damaged
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise self._damage("it names no architecture")
        self.architecture = architecture
        self.tensors = self._tensors(tensor_count)

    def _damage(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is damaged ({what}): download or copy it again")

    def _unread(self, what: str) -> ModelError:
        return ModelError(f"{self._path} cannot be read ({what}): use another file")

    def _check_model(self) -> None:
        parts, kind = (self.metadata.get(key) for key in ("split.count", "general.type"))
        if isinstance(parts, int) and parts > 1:
            raise ModelError(
                f"{self._path} is one of {parts} parts: join them with 'llama-gguf-split --merge' "
                "first"
            )
        if isinstance(kind, str) and kind in _BESIDE:
            what = f"{_BESIDE[kind]}, not a model: name the model's own file"
            raise ModelError(f"{self._path} is {what}")

    def _tensors(self, count: int) -> dict[str, GgufTensor]:
        alignment = self.metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise self._damage("its alignment is not a power of two of at least 8")
        entries = [self._entry() for _ in range(count)]
        begin = -(-self.position // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        for entry in entries:
            if entry.name in found:
                raise self._damage(f"it has the tensor {entry.name!r} twice")
            if entry.start % alignment:
                raise self._damage(f"the tensor {entry.name!r} is not aligned")
            if begin + entry.start + entry.nbytes > self._size:
                raise self._damage(f"it ends before the tensor {entry.name!r} does")
            found[entry.name] = replace(entry, start=begin + entry.start)
        for first, second in pairwise(sorted(found.values(), key=lambda tensor: tensor.start)):
            if first.start + first.nbytes > second.start:
                raise self._damage(f"the tensors {first.name!r} and {second.name!r} overlap")
        return found

    def _entry(self) -> GgufTensor:
        """A tensor whose start is relative to that of all tensor data."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name = self._name("a tensor's name")
        dimensions = self._number(_U32)
        if dimensions > _MOST_DIMENSIONS:
            raise self._damage(f"the tensor {name!r} has {dimensions} dimensions")
        # The file lists the fastest-moving dimension first.
        shape = tuple(reversed([self._number(_U64) for _ in range(dimensions)])) or (1,)
        kind, start = self._number(_U32), self._number(_U64)
        try:
            block = GGMLQuantizationType(kind)
            elements, size = GGML_QUANT_SIZES[block]
        except (ValueError, KeyError):
            raise self._unread(f"the tensor {name!r} has the unknown type number {kind}") from None
        if 0 in shape:
            raise self._damage(f"the tensor {name!r} is empty")
        if shape[-1] % elements:
            raise self._damage(f"rows of the tensor {name!r} are not whole blocks of {block.name}")
        return GgufTensor(name, block.name, shape, start, prod(shape) // elements * size)

    def _value(self, kind: int, nested: int = 0) -> Value:
        if kind in _NUMBERS:
            value: float = self._number(_NUMBERS[kind])
            return value
        if kind == STRING:
            return self._text().decode(errors="replace")
        if kind == ARRAY:
            return self._array(nested + 1)
        raise self._damage(f"it has a value of the unknown type number {kind}")

    def _array(self, nested: int) -> GgufArray:
        """Skip an array with all its elements."""
        if nested > _MOST_NESTED:
            raise self._damage("it has arrays that are nested too deeply")
        kind = self._number(_U32)
        if kind in _NUMBERS:
            count = self._count("values", _NUMBERS[kind].size)
            start = self._take(count * _NUMBERS[kind].size)
            return GgufArray(kind, count, start, self.position)
        count, start = self._count("values", _U64.size), self.position
        if kind != STRING:
            for _ in range(count):
                self._value(kind, nested)
            return GgufArray(kind, count, start, self.position)
        if count > _MOST_STRINGS:
            raise self._damage(f"it has an array of too many strings ({count})")
        position, last, read = self.position, self._size - _U64.size, _U64.unpack_from
        for _ in range(count):
            if position > last:
                raise self._damage("it ends inside its header")
            position += _U64.size + read(self._data, position)[0]
        self._take(position - self.position)
        return GgufArray(kind, count, start, self.position)

    def _count(self, what: str, least: int) -> int:
        """A count of things that take at least `least` bytes each."""
        count: int = self._number(_U64)
        if count * least > self._size - self.position:
            raise self._damage(f"it claims to hold {count} {what}, more than it has room for")
        return count

    def _name(self, what: str) -> str:
        try:
            return self._text().decode()
        except UnicodeDecodeError:
            raise self._damage(f"{what} is not UTF-8 text") from None

    def _text(self) -> bytes:
        length = self._number(_U64)
        start = self._take(length)
        return self._data[start : start + length]

    def _number(self, form: struct.Struct) -> int:
        number: int = form.unpack_from(self._data, self._take(form.size))[0]
        return number

    def _take(self, count: int) -> int:
        """Advance by `count` bytes and return where they begin."""
        start = self.position
        if count > self._size - start:
            raise self._damage("it ends inside its header")
        self.position += count
        return start
