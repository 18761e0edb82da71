"""Starting Chimera's context encoder as a copy of the target's last layer, as the official code
once did."""

from __future__ import annotations

import torch

from paceline.drafters.context_encoder import ContextEncoder
from paceline.training.final_norm import gains_of
from paceline.training.method import Base
from paceline.training.methods.last_layer import copy_last_layer

__all__ = ["begin_as_last_layer"]

_NORMS = {"green_norm": "input_layernorm", "inner_norm": "post_attention_layernorm"}
_SMALLEST = 1e-2


@torch.no_grad()
def begin_as_last_layer(encoder: ContextEncoder, base: Base) -> None:
    """Copy the target's last layer to `encoder`, and its last normalisation if that ends in one.
    Mature states come out of this one, so `mature_norm` undoes its gains before the layer's.

    Raises ModelError for a target whose layers have other parts.
    """
    copy_last_layer(encoder, base, _NORMS, "Chimera")
    gains = gains_of(base.final_norm)
    small = gains.abs() < _SMALLEST
    encoder.mature_norm.copy_(encoder.green_norm / gains.masked_fill(small, 1.0))
    if encoder.output_norm is not None:
        encoder.output_norm.copy_(gains)
