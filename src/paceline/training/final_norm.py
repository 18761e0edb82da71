"""The normalisation between a model's last layer and its output head, and what any scales by."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.errors import ModelError

__all__ = ["final_norm", "gains_of"]

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


@torch.no_grad()
def gains_of(norm: nn.Module) -> torch.Tensor:
    """[hidden] float32: by what a normalisation multiplies; not always its weights, since Gemma's
    add one to them."""
    weight = norm.get_parameter("weight")
    signs = torch.ones_like(weight)
    signs[::2] = -1.0  # mean 0, square 1: normal already
    found: torch.Tensor = (norm(signs) - norm(-signs)).float() / 2 * signs.float()
    # The epsilon under the root makes these a little smaller.
    return weight.float() if torch.allclose(found, weight.float(), rtol=1e-3) else found
