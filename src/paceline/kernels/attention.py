"""Attention with a mask and fewer key than query heads, without copying keys and values.

transformers' own function repeats them per query head whenever there is a mask, because CUDA's
kernels want it so; the CPU's kernel reads them where they are. Registered in transformers'
attention interface under a name of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["GROUPED", "use_grouped_attention"]

GROUPED = "paceline_grouped"

# The kernel sums in another order for fewer rows than this: a row would be worth other bits in a
# narrow pass than in a wide one.
_LEAST_ROWS = 4


def grouped_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query [batch, heads, width, size], key and value [batch, key heads, slots, size] ->
    [batch, width, heads, size]; the contract of transformers' attention interface."""
    if attention_mask is None or kwargs.get("position_bias") is not None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out, None
    if kwargs.get("softcap") is not None:
        raise ValueError("softcap is not supported")
    width = query.shape[2]
    if width < _LEAST_ROWS:
        missing = (0, 0, 0, _LEAST_ROWS - width)
        query, attention_mask = F.pad(query, missing), F.pad(attention_mask, missing)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return out[:, :, :width].transpose(1, 2).contiguous(), None


def use_grouped_attention(model: PreTrainedModel) -> bool:
    """Switch a model on the CPU from "sdpa" over; returns whether that was possible."""
    if model.config._attn_implementation != "sdpa" or model.device.type != "cpu":
        return False
    if not model._can_set_attn_implementation():
        return False
    AttentionInterface.register(GROUPED, grouped_attention)
    AttentionMaskInterface.register(GROUPED, sdpa_mask)
    model.set_attn_implementation(GROUPED)
    return bool(model.config._attn_implementation == GROUPED)
