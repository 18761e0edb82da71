"""A short mark of a model's weights, so that a trained drafter can tell its own target again.

It depends on the stored weights alone: not on where they lie, on the machine, or on device and
dtype after loading. It is no proof against forgery.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError
from paceline.models.cache import sampled
from paceline.models.description_cache import hash_of
from paceline.models.source import ModelSource, resolve
from paceline.models.store import ModelStore

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["fingerprint", "loaded_fingerprint", "weight_files"]

_DIGITS = 32


def fingerprint(source: ModelSource, revision: str | None = None) -> str:
    """32 hex digits for the weights a source holds, once they are on this machine.

    A GGUF file is hashed whole, once; that of an alias was when it was pulled. Other weights are
    sampled, a few hundred kilobytes of each file.
    """
    if source.alias is not None:
        return source.alias.weights_sha256[:_DIGITS]
    if source.gguf_file is not None:
        return hash_of(Path(source.location, source.gguf_file))[:_DIGITS]
    files = weight_files(source, revision)
    if files:
        return sampled(files)[:_DIGITS]
    # Weights under names we do not know: the place and the hub's commit must do.
    return hashlib.sha256(f"{source.location}@{revision}".encode()).hexdigest()[:_DIGITS]


def loaded_fingerprint(model: PreTrainedModel) -> str:
    """The mark of a model that transformers has loaded, from the folder or the hub's cache that its
    weights came from; "" where they are not there, for example because it was made in memory. What
    was done to it since is not seen.
    """
    store = ModelStore()
    folder = Path(model.name_or_path).absolute()
    pulled = folder.parent == store.root / "models" and folder.name in store.aliases
    commit = getattr(model.config, "_commit_hash", None)
    try:
        name = folder.name if pulled else model.name_or_path
        source = resolve(name, store=store, local_files_only=True)
        known = source.alias is not None or weight_files(source, commit)
        return fingerprint(source, commit) if known else ""
    except (ModelError, OSError):
        return ""


def weight_files(source: ModelSource, revision: str | None) -> list[Path]:
    """The files the weights are in; for a hub repository, in the hub's own cache."""
    if source.gguf_file is not None:
        whole = _locate(source, source.gguf_file, revision)
        return [] if whole is None else [whole]
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
