"""From a model's name to a target: prepared as it was kept, or opened anew.

Opening a model takes seconds: transformers' classes, packing, a recording of its forward, checks.
On the CPU, in the blocks of a GGUF file, the result is just steps and tensors. These are kept; the
next start reads them, and opens the model itself only if something needs it.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paceline.errors import ModelError
from paceline.kernels.native.calls import unavailable
from paceline.models import ProgressCallback, load_causal_lm
from paceline.models.cache import hash_file
from paceline.models.explain import explained
from paceline.models.fingerprint import fingerprint
from paceline.models.load import load_gguf_tokenizer
from paceline.models.placement import placement
from paceline.models.source import ModelSource, resolve
from paceline.models.vocabulary import stop_ids
from paceline.opening.kept_targets import find_target, keep_target, mark_of
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import DEFAULT_ENGINE, check_choices, open_target
from paceline.targets.prepare import AUTO, BLOCKS, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class OpenedModel:
    """A model that is ready to generate.

    eos_ids: tokens that end a text. fingerprint: of its weights.
    """

    target: CausalLMTarget
    tokenizer: PreTrainedTokenizerBase
    eos_ids: list[int]
    fingerprint: str


@dataclass(frozen=True)
class ModelOrder:
    """A model to open, and how; see `paceline.load`. Raises UsageError for an unknown choice.

    placement: `device`, `dtype`, `device_map` and `attn_implementation`.
    """

    name: str
    placement: Mapping[str, Any]
    weights: str
    engine: str
    cache_dtype: str

    def __post_init__(self) -> None:
        check_choices(self.engine, self.weights, self.cache_dtype)

    @property
    def may_be_kept(self) -> bool:
        """Whether models opened this way are kept. Raises UsageError for an impossible device or
        dtype."""
        place = self.placement
        usual = (place["device_map"], place["attn_implementation"]) == (None, None)
        if not usual or (self.weights, self.engine) != (AUTO, DEFAULT_ENGINE) or unavailable():
            return False
        return placement(place["device"], place["dtype"], None) == {"dtype": torch.float32}


def open_model(order: ModelOrder, progress: ProgressCallback) -> OpenedModel:
    """Open a model, prepared if it was kept. Raises what `paceline.load` raises."""
    source = resolve(order.name, progress=progress) if order.may_be_kept else None
    if source is None or source.gguf_file is None or source.folder is None:
        return _open_anew(order, progress)
    # A relative path would name something else after a change of the working directory.
    source = replace(source, folder=source.folder.absolute())
    with explained(source):
        mark = _mark(source)
    found = _open_kept(order, source, mark, progress)
    if found is None:
        found = _open_anew(order, progress)
        with explained(source):
            same = _mark(source) == mark  # not replaced while it was opened
        if same and found.target.preparation.weights == BLOCKS:
            keep_target(mark, found.target, {"eos_ids": found.eos_ids})
    return found


def _open_anew(order: ModelOrder, progress: ProgressCallback) -> OpenedModel:
    blocks = order.weights == AUTO
    loaded = load_causal_lm(order.name, **order.placement, blocks=blocks, progress=progress)
    target = open_target(
        loaded.model, order.engine, weights=order.weights, cache_dtype=order.cache_dtype
    )
    eos_ids = stop_ids(loaded.model, loaded.tokenizer)
    return OpenedModel(target, loaded.tokenizer, eos_ids, loaded.fingerprint)


def _open_kept(
    order: ModelOrder, source: ModelSource, mark: str, progress: ProgressCallback
) -> OpenedModel | None:
    """The model as it was kept; None if it was not, or if what was kept is invalid."""
    kept = find_target(mark)
    if kept is None or not isinstance(kept.more.get("eos_ids"), list):
        return None
    name = order.name if source.alias else os.path.abspath(os.path.expanduser(order.name))

    def opened() -> PreTrainedModel:
        model = load_causal_lm(name, device="cpu", blocks=True, progress=progress).model
        if _mark(source) != mark:
            raise ModelError(f"{source.name} was replaced meanwhile: open it again")
        prepare(model)
        return model

    target = kept.target(opened, order.cache_dtype)
    tokenizer = load_gguf_tokenizer(source, progress)
    return OpenedModel(target, tokenizer, kept.more["eos_ids"], fingerprint(source))


def _mark(source: ModelSource) -> str:
    status = Path(source.location, str(source.gguf_file)).stat()
    described = []
    if source.described:  # the user may edit these
        files = (Path(source.location, name) for name in ("config.json", "generation_config.json"))
        described = [hash_file(file) for file in files if file.exists()]
    weights = [fingerprint(source), status.st_size, status.st_mtime_ns]
    return mark_of({"weights": weights, "described": described})
