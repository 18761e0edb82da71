"""Draft models that are made of the model they draft for.

Some share its embeddings: they are prepared as they were kept, or opened anew, with their base,
which takes seconds and memory that passes do not need. Others (`draft=self`) are quantised copies,
made from the weights in memory or, if they cannot be read, from the model's files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError, UsageError, readable
from paceline.kernels.native.calls import unavailable
from paceline.kernels.programs.rounding import Rounding
from paceline.models import ProgressCallback, load_causal_lm
from paceline.models.cache import hash_file
from paceline.models.draft_folder import RECORD, is_shared_draft, open_draft, read_draft_record
from paceline.models.explain import explained
from paceline.models.fingerprint import loaded_fingerprint
from paceline.models.memory import check_room
from paceline.models.source import resolve
from paceline.opening.kept_targets import find_target, keep_target, mark_of
from paceline.protocols import Target
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import open_target
from paceline.targets.late_model import LateModel
from paceline.targets.prepare import prepare
from paceline.targets.quantised_copy import (
    BITS,
    copied_target,
    has_own_weights,
    rounded_bytes,
    steps_of,
    twin_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SMALLER = 0.8
"""Largest share of the model's bytes per pass that a copy may read; more could hardly be faster."""

_FILES = (RECORD, "config.json", "model.safetensors")


def find_own_draft(name: str, progress: ProgressCallback) -> Path | None:
    """The folder of a draft model that shares its base's embeddings; None for any other model. One
    in a repository of the hub is known by its record, and then fetched.

    Raises ModelError for a name that is no model's, a damaged record, and a draft model that cannot
    be fetched.
    """
    source = resolve(name, progress=progress)
    if source.gguf_file is not None:
        return None
    if source.folder is not None:
        return source.folder if is_shared_draft(source.folder) else None
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        record = Path(hf_hub_download(source.location, RECORD))
    except (OSError, ValueError):  # base classes of the hub's own errors
        return None  # as most have none; what else is wrong is told when the model is loaded
    if not is_shared_draft(record.parent):
        return None
    with explained(source):
        return Path(snapshot_download(source.location, allow_patterns=list(_FILES)))


def open_own_draft(
    folder: Path, base: LateModel, target: Target | None, fingerprint: str, weights: str
) -> tuple[CausalLMTarget, str]:
    """The target on the draft model in a folder, and the fingerprint of its weights.

    base: the model that it drafts for. target, fingerprint: what runs it, if known, and its own.
    weights: of the draft, as in `prepare`.

    Raises ModelError if there is no such draft model, it belongs to another base, or its files are
    damaged.
    """
    if not isinstance(target, CausalLMTarget) or not _may_be_kept(target, fingerprint):
        model = open_draft(folder, base.get(), fingerprint)
        return open_target(model, weights=weights, exact=False), loaded_fingerprint(model)
    read_draft_record(folder).check_base(fingerprint)
    digests = _digests(folder)

    def opened() -> PreTrainedModel:
        model = open_draft(folder, base.get(), fingerprint)
        if _digests(folder) != digests:
            raise ModelError(f"the draft model in {folder} was replaced meanwhile: open it again")
        return model

    def prepared() -> PreTrainedModel:
        model = opened()
        prepare(model, weights, exact=False)
        return model

    of_base = fingerprint, target.preparation.weights
    mark = mark_of({"base": of_base, "draft": digests, "weights": weights})
    kept = find_target(mark, target)
    if kept is not None and isinstance(kept.more.get("fingerprint"), str):
        return kept.target(prepared), kept.more["fingerprint"]
    model = opened()
    made, own = open_target(model, weights=weights, exact=False), loaded_fingerprint(model)
    keep_target(mark, made, {"fingerprint": own}, target)
    return made, own


def _may_be_kept(target: CausalLMTarget, fingerprint: str) -> bool:
    """Whether what is kept would fit the base's next start."""
    on_cpu = target.late_model.facts.device == "cpu" and not unavailable()
    return bool(fingerprint) and on_cpu and target.steps is not None


def _digests(folder: Path) -> list[str]:
    """Of the files that determine the model. Raises ModelError if one cannot be read."""
    with readable(f"the draft model {folder}", ModelError):
        return [hash_file(folder / name) for name in _FILES]


def open_copy(
    target: Target, weights: str, fingerprint: str, progress: ProgressCallback
) -> CausalLMTarget:
    """A target on a copy of the target's model.

    weights: of the copy, int4 or int8. fingerprint: of the model; its files, if read, must match.

    Raises UsageError if there can be no such copy, or none that is smaller; ModelError without
    enough memory for it, or weights to make it from.
    """
    if not isinstance(target, CausalLMTarget):
        raise UsageError(f"a {type(target).__name__} cannot be copied: name a draft model")
    if weights not in BITS:
        raise UsageError(f"a copy must have weights {' or '.join(BITS)}, not {weights!r}")
    if target.late_model.facts.device != "cpu" or unavailable():
        why = unavailable() or f"it is on {target.late_model.facts.device}, not on a CPU"
        raise UsageError(f"this model cannot run with {weights} weights here: {why}")
    what, otherwise = f"a copy of this model with {weights} weights", "use another method"
    steps = steps_of(target)
    if steps is not None:
        rounding = Rounding(steps, BITS[weights])
        if rounding.after > _SMALLER * rounding.before:
            copied, own = (size / 1e6 for size in (rounding.after, rounding.before))
            raise UsageError(
                f"{what} would read {copied:.0f} MB in each pass, and the model itself reads "
                f"{own:.0f} MB, so it could not draft faster: load the model with "
                "weights='packed' (--weights packed), or name another draft model"
            )
        check_room(what, rounding.needed, otherwise)
        return copied_target(target, rounding, weights)
    if has_own_weights(target.model):
        check_room(what, rounded_bytes(target.model, weights), otherwise)
        return open_target(twin_of(target.model), weights=weights, exact=False)
    return _from_files(target, weights, fingerprint, progress)


def _from_files(
    target: CausalLMTarget, weights: str, fingerprint: str, progress: ProgressCallback
) -> CausalLMTarget:
    """A copy made from the model's files, for weights in memory that can no longer be read."""
    name = target.model.name_or_path
    refusal = "the weights of this model are packed and cannot be copied, and"
    if not name:
        raise ModelError(f"{refusal} it has no files: accelerate it with weights='native'")
    dtype = target.preparation.halves or target.late_model.facts.dtype
    try:
        loaded = load_causal_lm(name, device="cpu", dtype=dtype, progress=progress)
    except ModelError as error:
        raise ModelError(f"{refusal} its files cannot be read: {error}") from error
    if fingerprint and loaded.fingerprint != fingerprint:
        raise ModelError(f"{refusal} {name} now contains another model: load it again")
    return open_target(loaded.model, weights=weights, exact=False)
