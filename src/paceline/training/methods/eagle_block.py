"""EAGLE's block as a copy of the target's last layer, or a part of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.eagle_parts import EagleConfig
from paceline.errors import ModelError
from paceline.training.method import Base

__all__ = ["copy_last_layer", "sized_like"]

# What Llama and its relatives call the parts of a layer.
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "join": "o_proj"}
_NORMS = {"row_norm": "input_layernorm", "inner_norm": "post_attention_layernorm"}


def sized_like(config: EagleConfig, base: PreTrainedConfig, intermediate: int = 0) -> EagleConfig:
    """`config` with the sizes of the base's layers, and their angles.

    intermediate: of the feed-forward; 0 takes the base's, and four times the hidden size where the
    base does not say.
    """
    sizes: Any = base.get_text_config()
    heads, hidden = sizes.num_attention_heads, sizes.hidden_size
    turns = getattr(sizes, "rope_parameters", None) or {}
    angles = turns.get("rope_theta") or getattr(sizes, "rope_theta", None)
    return replace(
        config,
        attention_heads=heads,
        kv_heads=getattr(sizes, "num_key_value_heads", None) or heads,
        head_size=getattr(sizes, "head_dim", None) or hidden // heads,
        intermediate=intermediate or getattr(sizes, "intermediate_size", None) or 4 * hidden,
        rotary_base=float(angles or config.rotary_base),
    )


@torch.no_grad()
def copy_last_layer(model: EagleModel, base: Base) -> None:
    """Let the block begin with the numbers of the target's last layer, and end in its last norm.

    Biases are left out: the block has none. Of a wider feed-forward the units with the largest
    weights are taken.

    Raises ModelError for a target whose layers have other parts.
    """
    layer = base.last_layer
    try:
        for own, name in _ATTENTION.items():
            model.get_parameter(f"{own}.weight").copy_(_weight(layer, f"self_attn.{name}"))
        for own, name in _NORMS.items():
            model.get_parameter(own).copy_(_weight(layer, name))
        gate, up, down = (_weight(layer, f"mlp.{name}_proj") for name in ("gate", "up", "down"))
        sizes = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
        units = sizes.topk(model.config.intermediate).indices.sort().values
        model.gate.weight.copy_(gate[units])
        model.up.weight.copy_(up[units])
        model.down.weight.copy_(down[:, units])
        model.last_norm.copy_(_weight(base.final_norm, ""))
    except (AttributeError, RuntimeError) as error:
        raise ModelError(
            f"the last layer of {type(base.model).__name__} cannot be copied into EAGLE's block "
            f"({error}): leave block at random"
        ) from error


def _weight(module: nn.Module, name: str) -> torch.Tensor:
    found: Any = module.get_submodule(name).weight
    weight: torch.Tensor = found.float()
    return weight
