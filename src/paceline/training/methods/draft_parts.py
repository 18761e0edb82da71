"""A trained draft model, as its folder keeps it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from paceline.errors import ModelError
from paceline.models.draft_folder import (
    RECORD,
    DraftRecord,
    read_draft_record,
    read_draft_tensors,
    read_draft_training,
    save_draft,
)
from paceline.models.draft_model import VOCABULARY, head_tensors, name_of_head, own_tensors
from paceline.models.low_rank import DOWN, UP
from paceline.training.method import Base

__all__ = ["DraftParts", "parts_of"]


@dataclass(frozen=True)
class DraftParts:
    """See `Finished`.

    about: which model it drafts for, and with which layers. tensors: all that the folder holds.
    config: of the smaller model; None if read from a folder. whole: base and tokenizer of a
    standalone draft.
    """

    about: DraftRecord
    tensors: Mapping[str, torch.Tensor]
    record: Mapping[str, Any]
    config: PreTrainedConfig | None = None
    whole: tuple[PreTrainedModel, PreTrainedTokenizerBase | None] | None = None

    kind: ClassVar[str] = "a draft model"

    @classmethod
    def found_in(cls, folder: Path) -> Self | None:
        """Load the draft of a folder, None if none is finished there."""
        if not (folder / RECORD).exists():
            return None
        about = read_draft_record(folder)
        return cls(about, read_draft_tensors(folder), read_draft_training(folder))

    @property
    def token_ids(self) -> torch.Tensor | None:
        """See `Finished`."""
        found = self.tensors.get(VOCABULARY)
        return None if found is None else found.long()

    def fingerprint(self) -> str:
        """See `Finished`."""
        return self.about.weights_sha256

    def check_base(self, fingerprint: str) -> None:
        """See `DraftRecord.check_base`."""
        self.about.check_base(fingerprint)

    def save_pretrained(self, folder: Path) -> None:
        """Write the folder; raises ModelError if that fails."""
        assert self.config is not None  # noqa: S101 - what was read is not written again
        if self.whole is not None:
            _save_company(*self.whole, folder)
        save_draft(folder, self.config, self.tensors, self.about, self.record)


def parts_of(
    draft: PreTrainedModel,
    kept: Mapping[str, torch.Tensor],
    layers: tuple[int, ...],
    alone: bool,
    rank: int,
    base: Base,
    record: Mapping[str, Any],
) -> DraftParts:
    """Make the parts of a trained draft.

    kept: the trained tensors, rounded. layers: of the base, that it is made of. alone: whether the
    folder holds the embeddings, too. rank: of the updates to the layers' weights; 0 for whole ones.
    """
    own = sum(tensor.numel() for tensor in kept.values())
    tensors = dict(kept)
    if alone:
        tensors = _with_embeddings(draft, base.model, kept)
    elif base.token_ids is not None:
        tensors |= {
            name: tensor.half() if tensor.is_floating_point() else tensor
            for name, tensor in head_tensors(base.model, base.token_ids, rank > 0).items()
        }
    sizes = {
        "own": own,
        "read_by_a_pass": _read_by_a_pass(draft, base),
        "of_the_base": base.model.num_parameters(),
    }
    config = copy.deepcopy(draft.config)
    config.dtype = next(iter(kept.values())).dtype
    config.architectures = [type(base.model).__name__]
    about = DraftRecord(
        base=base.about.fingerprint,
        name=base.about.name,
        layers=layers,
        vocabulary=0 if base.token_ids is None else len(base.token_ids),
        shared=not alone,
        rank=rank,
        parameters=own,
    )
    whole = (base.model, base.tokenizer) if alone else None
    found = {**record, "parameters": sizes, "bytes": sum(each.nbytes for each in tensors.values())}
    return DraftParts(about, tensors, found, config, whole)


def _read_by_a_pass(draft: PreTrainedModel, base: Base) -> int:
    """Parameters that a pass reads when updates have been added to their weights."""
    own = own_tensors(draft, base.model)
    layers = sum(
        each.numel()
        for name, each in own.items()
        if not name.endswith((DOWN, UP)) and not name.startswith("draft.")
    )
    return layers + base.head[0].numel()


def _with_embeddings(
    draft: PreTrainedModel, base: PreTrainedModel, kept: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """All tensors of a standalone draft."""
    dtype = next(iter(kept.values())).dtype
    tied = draft.config.tie_word_embeddings
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in draft.state_dict().items()
        if not (tied and name == f"{name_of_head(base)}.weight")
    }


def _save_company(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: Path
) -> None:
    """Write what else an ordinary model's folder holds."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        if base.generation_config is not None:
            base.generation_config.save_pretrained(folder)
    except OSError as error:
        raise ModelError(f"cannot write the draft model to {folder}: {error.strerror}") from error
