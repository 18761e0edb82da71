"""The normalisation between a model's last layer and its output head."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from paceline.errors import ModelError

__all__ = ["final_norm"]

_NAMES = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


def final_norm(model: PreTrainedModel) -> nn.Module:
    """Find this module in `model`; raises ModelError if it has none of the usual names."""
    for name in _NAMES:
        norm = getattr(model.base_model, name, None)
        if isinstance(norm, nn.Module):
            return norm
    raise ModelError(
        f"the last normalisation of {type(model).__name__} was not found, so no drafter can be trained with it"
    )
