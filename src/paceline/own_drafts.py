"""Draft models that share their base's embeddings: prepared as they were kept, or opened anew, with
their base, which takes seconds and memory that passes do not need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError
from paceline.kept_targets import find_target, keep_target, mark_of
from paceline.kernels.native.calls import unavailable
from paceline.models.cache import hash_file
from paceline.models.draft_folder import RECORD, is_shared_draft, open_draft, read_draft_record
from paceline.models.explain import explained
from paceline.models.fingerprint import loaded_fingerprint
from paceline.models.progress import ProgressCallback, ignore_progress
from paceline.models.source import resolve
from paceline.protocols import Target
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import open_target
from paceline.targets.late_model import LateModel
from paceline.targets.prepare import prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FILES = (RECORD, "config.json", "model.safetensors")


def find_own_draft(name: str, progress: ProgressCallback = ignore_progress) -> Path | None:
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
    try:
        return [hash_file(folder / name) for name in _FILES]
    except OSError as error:
        raise ModelError(f"cannot read the draft model {folder}: {error.strerror}") from error
