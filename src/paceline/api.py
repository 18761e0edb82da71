"""`paceline.load`: from a model's name to a session, in one call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.datastore import Datastore
from paceline.defaults import DEFAULT_METHOD
from paceline.draft_models import DraftModels
from paceline.drafters import check_method
from paceline.models import DEFAULT_MODEL, ProgressCallback
from paceline.models.progress import ignore_progress
from paceline.models.vocabulary import vocabulary_mark
from paceline.options import Options
from paceline.planning.first_curve import known_curve
from paceline.prepared_models import ModelOrder, OpenedModel, open_model
from paceline.session import Session, Store
from paceline.targets.cache_dtypes import FLOAT32
from paceline.targets.engines import DEFAULT_ENGINE, check_choices
from paceline.targets.prepare import AUTO

if TYPE_CHECKING:
    import torch

__all__ = ["load"]


def load(
    model: str = DEFAULT_MODEL,
    method: str = DEFAULT_METHOD,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, Any] | None = None,
    attn_implementation: str | None = None,
    weights: str = AUTO,
    cache_dtype: str = FLOAT32,
    engine: str = DEFAULT_ENGINE,
    store: Store | None = None,
    datastore: str | Path | None = None,
    options: Options | None = None,
    measure: bool | None = None,
    progress: ProgressCallback = ignore_progress,
    **settings: Any,
) -> Session:
    """Load a model and make it fast: `paceline.load("smollm2-135m")`, or with a method of your
    choice, `paceline.load("smollm2-135m", method="anpd", n=5, k=7)`.

    model: an alias (see `paceline models list`), a folder, a GGUF file or a hub id.
    method, settings: as in "anpd:n=5,k=7"; "plain" for none.
    device, dtype, device_map, attn_implementation: as in transformers; by default the GPU where
    there is one (bfloat16), else the CPU (float32). A draft model follows unless settings differ.
    weights, cache_dtype: how linear layers, and keys and values, are held, of `WEIGHTS` and
    `CACHE_DTYPES`; see docs/speed.md. engine: what runs the model, of `ENGINES`.
    store: keeps answers as references for similar queries, see `ReferenceStore`.
    datastore: folder of texts to guess from, to which answers are added; "own": the model's own.
    options: defaults of requests; without a budget trees are planned by what passes cost here.
    measure: whether to do that now, roughly, where nobody has; by default where trees are planned.

    Raises UsageError for an unknown method, setting or choice of these, ModelError where the model
    cannot be found, read or driven, or has no parts for the method, StoreError for a bad datastore.
    """
    check_choices(engine, weights, cache_dtype)
    check_method(method, **settings)  # a wrong method must not wait for the model
    order = ModelOrder(
        model, device, dtype, device_map, attn_implementation, weights, engine, cache_dtype
    )
    opened = open_model(order, progress)
    measure = _plans(method, options) if measure is None else measure
    mark = opened.fingerprint
    return Session(
        opened.target,
        opened.tokenizer,
        method,
        settings=settings,
        eos_ids=opened.eos_ids,
        store=store,
        datastore=_datastore(datastore, opened.tokenizer),
        options=options,
        fingerprint=mark,
        curve=known_curve(opened.target, mark, measure, lambda: progress("measure", 0, None)),
        drafts=_draft_models(opened, order, progress),
    )


def _draft_models(
    opened: OpenedModel, order: ModelOrder, progress: ProgressCallback
) -> DraftModels:
    return DraftModels(
        opened.model,
        opened.fingerprint,
        opened.tokenizer,
        target=opened.target,
        device=order.device,
        dtype=order.dtype,
        progress=progress,
    )


def _datastore(name: str | Path | None, tokenizer: Any) -> Datastore | None:
    if name is None:
        return None
    mark = vocabulary_mark(tokenizer)
    return Datastore(Datastore.default_folder(mark) if name == "own" else Path(name), mark)


def _plans(method: str, options: Options | None) -> bool:
    """Whether trees are going to be planned."""
    return method != "plain" and (options is None or options.budget is None)
