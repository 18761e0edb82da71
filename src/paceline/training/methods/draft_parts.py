"""What a trained draft model's folder holds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.models.draft_folder import DraftParts, DraftRecord
from paceline.models.draft_model import head_tensors, name_of_head, own_tensors
from paceline.models.low_rank import DOWN, UP
from paceline.training.method import Base

__all__ = ["parts_of"]


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
