"""Prepared models, kept so that the next start need not make them again.

`<cache root>/prepared/<mark>/` holds `tensors.safetensors`, `record.json` and digests of both.
The caller chooses a mark that covers all the model depends on. A model appears in one rename; a
damaged one counts as missing; if there are too many, the least recently used are deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.json_files import json_bytes, parse_json
from paceline.models.cache import FolderCache, was_used

if TYPE_CHECKING:
    import torch

_TENSORS, _RECORD, _HASHES = "tensors.safetensors", "record.json", "hashes.json"
_CACHE = FolderCache("prepared", holds=_HASHES, most=8)
_SPARE = 4  # a model is kept only if this many times its size is free
_READERS, _AT_ONCE = 4, 1 << 20  # threads, bytes
_KINDS = {"U8": "uint8", "F32": "float32", "I64": "int64", "I32": "int32"}

Tensors = Mapping[str, "torch.Tensor"]


def find_prepared(mark: str) -> tuple[dict[str, Any], Tensors] | None:
    """The record and the tensors kept under a mark; None if missing or damaged."""
    place = _CACHE.root / mark
    try:
        hashes = parse_json((place / _HASHES).read_text(encoding="utf-8"))
        text = (place / _RECORD).read_bytes()
        digest, tensors = _read_tensors(place / _TENSORS)
        if [digest, hashlib.sha256(text).hexdigest()] != [hashes[_TENSORS], hashes[_RECORD]]:
            return None
        was_used(place)
        return parse_json(text), tensors
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


def keep_prepared(mark: str, record: Mapping[str, Any], tensors: Tensors) -> None:
    """Keep both under a mark, unless the disk is too full or cannot be written, or a tensor has a
    dtype that is not in `_KINDS`."""
    if not all(_kind_of(each) in _KINDS.values() for each in tensors.values()):
        return
    needed = sum(each.nbytes for each in tensors.values())
    with suppress(OSError), _CACHE.making(mark) as new:
        if shutil.disk_usage(new).free < _SPARE * needed:
            raise OSError("the disk is too full")
        text = json_bytes(record)
        (new / _RECORD).write_bytes(text)
        digest = _write_tensors(new / _TENSORS, tensors)
        hashes = {_TENSORS: digest, _RECORD: hashlib.sha256(text).hexdigest()}
        (new / _HASHES).write_bytes(json_bytes(hashes))


def clear_prepared() -> int:
    """Delete all prepared models; returns the bytes freed, see `FolderCache.clear`."""
    return _CACHE.clear()


def _write_tensors(path: Path, tensors: Tensors) -> str:
    """Write a safetensors file and return its digest: the sha256 of those of header and tensors."""
    names = {value: name for name, value in _KINDS.items()}
    header, at = {}, 0
    for name, each in tensors.items():
        header[name] = {
            "dtype": names[_kind_of(each)],
            "shape": [*each.shape],
            "data_offsets": [at, at := at + each.nbytes],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little") + text]
    parts += map(bytes_of, tensors.values())
    with path.open("wb") as stream:
        stream.writelines(parts)
    return _digest_of(hashlib.sha256(part).digest() for part in parts)


def _digest_of(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _kind_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, in order."""
    import torch

    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _read_tensors(path: Path) -> tuple[str, Tensors]:
    """The digest of a file, see `_write_tensors`, and its tensors.

    The library's own reader maps the file, and passes would then read its small pages. Here one
    reading of the file serves both results; threads share it, since new memory is slow at first.
    """
    import torch

    from paceline.kernels.memory import WeightMemory

    with path.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        text = stream.read(8)
        text += stream.read(min(int.from_bytes(text, "little"), size))
    header = parse_json(text[8:])
    header.pop("__metadata__", None)
    found, places, memory = {}, list[tuple[int, memoryview]](), WeightMemory()
    for name, each in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = each["data_offsets"]
        if not 0 <= begin <= end <= size - len(text):
            raise ValueError(f"{name} is longer than its file")
        tensor = memory.empty(end - begin)
        places.append((len(text) + begin, bytes_of(tensor)))
        found[name] = tensor.view(getattr(torch, _KINDS[each["dtype"]])).view(each["shape"])
    with ThreadPoolExecutor(_READERS) as pool:
        digests = [*pool.map(lambda place: _read(path, *place), places)]
    return _digest_of([hashlib.sha256(text).digest(), *digests]), found


def _read(path: Path, at: int, into: memoryview) -> bytes:
    """Fill `into` from a place in a file; returns the sha256 of it."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        stream.seek(at)
        while into and (count := stream.readinto(into[:_AT_ONCE])):
            digest.update(into[:count])
            into = into[count:]
    return digest.digest()
