"""Models by name: fetch, keep and load them.

pull("smollm2-135m")                     # once; also done by the first load
model, tokenizer, mark = load_causal_lm("smollm2-135m")
model, tokenizer, mark = load_causal_lm("owner/name")           # from the hub
model, tokenizer, mark = load_causal_lm("owner/name:file.gguf") # one GGUF file from there
model, tokenizer, mark = load_causal_lm("path/to/folder")       # or path/to/file.gguf
"""

from __future__ import annotations

from pathlib import Path

from paceline.defaults import DEFAULT_MODEL
from paceline.models.cache import cache_root
from paceline.models.description_cache import clear_descriptions
from paceline.models.load import LoadedModel, load_causal_lm, load_tokenizer
from paceline.models.prepared_cache import clear_prepared
from paceline.models.progress import ProgressCallback, RichProgress, ignore_progress
from paceline.models.registry import ALIASES, Alias, ModelInfo
from paceline.models.source import ModelSource, resolve
from paceline.models.store import ModelStore

__all__ = [
    "ALIASES",
    "DEFAULT_MODEL",
    "Alias",
    "LoadedModel",
    "ModelInfo",
    "ModelSource",
    "ModelStore",
    "ProgressCallback",
    "RichProgress",
    "cache_root",
    "clear_descriptions",
    "clear_prepared",
    "list_models",
    "load_causal_lm",
    "load_tokenizer",
    "path",
    "pull",
    "remove",
    "resolve",
]


def pull(name: str, *, progress: ProgressCallback = ignore_progress, force: bool = False) -> Path:
    """Make an alias's model ready in the user's cache; see `ModelStore.pull`."""
    return ModelStore().pull(name, progress=progress, force=force)


def path(name: str) -> Path:
    """The folder of a pulled alias; see `ModelStore.path`."""
    return ModelStore().path(name)


def remove(name: str) -> int:
    """Delete a pulled alias and return the bytes freed; see `ModelStore.remove`."""
    return ModelStore().remove(name)


def list_models() -> list[ModelInfo]:
    """Every alias, pulled or not; see `ModelStore.list_models`."""
    return ModelStore().list_models()
