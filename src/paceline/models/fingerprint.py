"""A short mark of a model's weights, by which a trained drafter recognises its own target.

It depends only on the stored weights, not on their location, the machine, or device and dtype after
loading. It does not protect against forgery.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError
from paceline.json_files import parse_json
from paceline.models.cache import sampled
from paceline.models.description_cache import hash_of
from paceline.models.source import ModelSource, resolve
from paceline.models.store import ModelStore

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DIGITS = 32


def fingerprint(source: ModelSource, revision: str | None = None) -> str:
    """32 hex digits for the weights of a source that is on this machine.

    A GGUF file is hashed whole, once; an alias's was hashed when it was pulled. Other weights are
    sampled, a few hundred kilobytes of each file.
    """
    if source.alias is not None:
        return source.alias.weights_sha256[:_DIGITS]
    if source.gguf_file is not None:
        return hash_of(Path(source.location, source.gguf_file))[:_DIGITS]
    files = weight_files(source, revision)
    if files:
        return sampled(files)[:_DIGITS]
    # The weights have unknown file names: location and hub commit must do.
    return hashlib.sha256(f"{source.location}@{revision}".encode()).hexdigest()[:_DIGITS]


def form_of(model: PreTrainedModel) -> tuple[object, ...]:
    """What may change about a loaded model: device, dtype, size of the vocabulary, and mode."""
    return model.device, model.dtype, model.config.get_text_config().vocab_size, model.training


def loaded_fingerprint(model: PreTrainedModel) -> str:
    """The mark of a model that transformers has loaded, from the folder or hub cache that its
    weights came from; "" if they are not there, e.g. for one made in memory. Later changes to the
    model are not noticed."""
    store = ModelStore()
    folder = Path(model.name_or_path).absolute()
    pulled = folder.parent == store.root / "models" and folder.name in store.aliases
    commit = getattr(model.config, "_commit_hash", None)
    try:
        # A folder with an alias's name is not the alias.
        here = bool(model.name_or_path) and folder.is_dir()
        name = folder.name if pulled else str(folder) if here else model.name_or_path
        source = resolve(name, store=store, local_files_only=True)
        known = source.alias is not None or weight_files(source, commit)
        return fingerprint(source, commit) if known else ""
    except (ModelError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""  # damaged, or a name that the hub's library refuses


def weight_files(source: ModelSource, revision: str | None) -> list[Path]:
    """The files that hold the weights; for a hub repository, in the hub's own cache."""
    whole = _locate(source, source.gguf_file or "model.safetensors", revision)
    if whole is not None or source.gguf_file is not None:
        return [] if whole is None else [whole]
    index = _locate(source, "model.safetensors.index.json", revision)
    if index is None:
        return []
    shards = sorted(set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values()))
    found = (_locate(source, shard, revision) for shard in shards)
    return [path for path in found if path is not None]


def _locate(source: ModelSource, name: str, revision: str | None) -> Path | None:
    if source.folder is not None:
        path = source.folder / name
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(str(source.repo), name, revision=revision)
    return Path(cached) if isinstance(cached, str) else None
