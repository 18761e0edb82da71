"""How large Chimera's context encoder is for a model: as one of the model's own layers."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedConfig

from paceline.drafters.trained_heads import ChimeraConfig

__all__ = ["sized_like"]


def sized_like(
    config: ChimeraConfig, base: PreTrainedConfig, intermediate: int = 0
) -> ChimeraConfig:
    """`config` with the sizes of the base's layers.

    intermediate: of the feed-forward; 0 takes the base's, and four times the hidden size where the
    base does not say.
    """
    sizes = base.get_text_config()
    heads, hidden = sizes.num_attention_heads, sizes.hidden_size
    return replace(
        config,
        attention_heads=heads,
        kv_heads=getattr(sizes, "num_key_value_heads", None) or heads,
        head_size=getattr(sizes, "head_dim", None) or hidden // heads,
        intermediate=intermediate or getattr(sizes, "intermediate_size", None) or 4 * hidden,
    )
