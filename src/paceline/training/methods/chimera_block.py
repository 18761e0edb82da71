"""Chimera's context encoder as a copy of the target's last layer, as the official code began it once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from paceline.drafters.chimera_model import ChimeraModel
from paceline.errors import ModelError
from paceline.training.method import Base

__all__ = ["copy_last_layer"]

# What Llama and its relatives call the parts of a layer.
_PARTS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "join": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_NORMS = {"green_norm": "input_layernorm", "inner_norm": "post_attention_layernorm"}
_SMALLEST = 1e-2
_ROTARY_BASE = 10_000.0  # of a model that does not say


@torch.no_grad()
def copy_last_layer(model: ChimeraModel, base: Base, bottom: nn.Module | None) -> ChimeraModel:
    """`model` with the numbers of the target's last layer in its context encoder, which turns by the
    target's angles; where it ends in a normalisation, that is the target's last.

    Biases are left out: the encoder has none. A mature state comes out of that last normalisation,
    so its own norm takes the gains back before it applies the layer's.

    Raises ModelError for a target whose layers have other parts.
    """
    config = replace(model.config, rotary_base=_rotary_base(base))
    head = base.head
    model = ChimeraModel(config, head, base.embed, base.token_ids, bottom)
    encoder, layer = model.encoder, base.last_layer
    try:
        for own, name in _PARTS.items():
            getattr(encoder, own).weight.copy_(layer.get_parameter(f"{name}.weight"))
        for own, name in _NORMS.items():
            getattr(encoder, own).copy_(layer.get_parameter(f"{name}.weight"))
        gains = base.final_norm.get_parameter("weight").float()
    except (AttributeError, RuntimeError) as error:
        raise ModelError(
            f"the last layer of {type(base.model).__name__} cannot be copied into Chimera's block "
            f"({error}): leave block at random"
        ) from error
    small = gains.abs() < _SMALLEST
    encoder.mature_norm.copy_(encoder.green_norm / gains.masked_fill(small, 1.0))
    if encoder.output_norm is not None:
        encoder.output_norm.copy_(gains)
    return model


def _rotary_base(base: Base) -> float:
    config: Any = base.model.config.get_text_config()
    found: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    theta: Any = found.get("rope_theta") or getattr(config, "rope_theta", _ROTARY_BASE)
    return float(theta)
