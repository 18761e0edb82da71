"""A short mark of a model's weights, so that a trained drafter can tell its own target again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from paceline.models.source import ModelSource

__all__ = ["fingerprint", "weight_files"]

_HEAD_BYTES = 1 << 16
_SAMPLES = 1024
_SAMPLE_BYTES = 256


def fingerprint(files: Iterable[Path]) -> str:
    """32 hex digits from the sizes, heads and evenly spaced samples of weight files.

    It depends on the stored weights alone: not on where they lie, nor on device or dtype after
    loading. It reads a few hundred kilobytes and is no proof against forgery.
    """
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            digest.update(stream.read(_HEAD_BYTES))
            for sample in range(_SAMPLES):
                stream.seek(size * sample // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def weight_files(source: ModelSource, revision: str | None) -> list[Path]:
    """The files a loaded model's weights came from; for a hub repository, in the hub's cache."""
    if source.gguf_file is not None:
        return [Path(source.location, source.gguf_file)]
    single = _locate(source, "model.safetensors", revision)
    if single is not None:
        return [single]
    index = _locate(source, "model.safetensors.index.json", revision)
    if index is None:
        return []
    shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    found = (_locate(source, shard, revision) for shard in shards)
    return [path for path in found if path is not None]


def _locate(source: ModelSource, name: str, revision: str | None) -> Path | None:
    if source.folder is not None:
        path = source.folder / name
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(str(source.repo), name, revision=revision)
    return Path(cached) if isinstance(cached, str) else None
