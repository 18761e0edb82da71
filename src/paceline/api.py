"""`paceline.load`: from a model's name to a session, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.datastore import Datastore
from paceline.defaults import DEFAULT_METHOD
from paceline.drafters import check_method
from paceline.drafters.known_texts import NO_DATASTORE
from paceline.errors import UsageError
from paceline.models import DEFAULT_MODEL, ProgressCallback
from paceline.models.progress import ignore_progress
from paceline.models.vocabulary import vocabulary_mark
from paceline.opening.draft_models import DraftModels
from paceline.opening.prepared_models import ModelOrder, open_model
from paceline.options import Options
from paceline.planning.curve_store import known_curve
from paceline.session import Session, Store
from paceline.targets.cache_dtypes import FLOAT32
from paceline.targets.engines import DEFAULT_ENGINE
from paceline.targets.prepare import AUTO

if TYPE_CHECKING:
    import torch


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
    datastore: str | Path | Literal[False] | None = None,
    options: Options | None = None,
    measure: bool | None = None,
    progress: ProgressCallback = ignore_progress,
    **settings: Any,
) -> Session:
    """Load a model and make it fast, e.g. `paceline.load("smollm2-135m", method="anpd", n=5, k=7)`.

    model: an alias (see `paceline models list`), a folder, a GGUF file or a hub id.
    method, settings: as in "anpd:n=5,k=7"; "plain" for none.
    device, dtype, device_map, attn_implementation: as in transformers; by default a GPU, if any.
    weights: format of the linear layers, one of `WEIGHTS`. cache_dtype: format of keys and values,
    one of `CACHE_DTYPES`. See docs/speed.md. engine: what runs the model, one of `ENGINES`.
    store: keeps answers as references for similar queries, see `ReferenceStore`.
    datastore: folder of texts to guess from, to which answers are added; "own": the model's own,
    which is searched by default, but not with False.
    options: defaults of requests. Without a budget, trees are planned from measured pass costs.
    measure: whether to measure these roughly if nobody has; by default yes.

    Raises UsageError for an unknown method, setting or choice, ModelError if the model cannot be
    found, read or run, or has no parts for the method, StoreError for a bad datastore.
    """
    _check_names(method, settings, datastore)  # which must not wait for the model
    placement = {
        "device": device,
        "dtype": dtype,
        "device_map": device_map,
        "attn_implementation": attn_implementation,
    }
    opened = open_model(ModelOrder(model, placement, weights, engine, cache_dtype), progress)
    if measure is None:  # whether trees will be planned
        measure = method != "plain" and (options is None or options.budget is None)
    return Session(
        opened.target,
        opened.tokenizer,
        method,
        settings=settings,
        store=store,
        datastore=_datastore(datastore, opened.tokenizer),
        options=options,
        curve=known_curve(opened.target, opened.fingerprint, measure, progress),
        drafts=DraftModels(
            opened.target.late_model,
            opened.fingerprint,
            opened.tokenizer,
            target=opened.target,
            device=device,
            dtype=dtype,
            measure=measure,
            progress=progress,
        ),
        eos_ids=opened.eos_ids,
        fingerprint=opened.fingerprint,
    )


def _check_names(method: str, settings: Mapping[str, Any], datastore: object) -> None:
    check_method(method, **settings)
    if datastore is True or str(datastore) in ("", NO_DATASTORE):
        raise UsageError(f"{str(datastore)!r} names no datastore: leave it out, or name a folder")


def _datastore(
    name: str | Path | Literal[False] | None, tokenizer: Any
) -> Datastore | Literal[False] | None:
    if name is None or name is False:
        return name
    mark = vocabulary_mark(tokenizer)
    own = Datastore.default_folder(mark)
    return Datastore(own if name == "own" else Path(os.path.expanduser(name)), mark)
