"""Autocast: torch rounds the inputs of products, and what they return, in the caller's context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def autocast_dtype(model: PreTrainedModel) -> torch.dtype | None:
    """What products of the model are rounded to here; None without autocast on its device."""
    kind = model.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)
