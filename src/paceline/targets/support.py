"""Whether a model can be driven, and how far it sees, by its configuration."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

import torch

from paceline.errors import ModelError
from paceline.kernels.attention import GROUPED

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_FULL = "full_attention"
_SLIDING = "sliding_attention"
_ATTENTION = ("sdpa", "eager", GROUPED)


def check_supported(model: PreTrainedModel) -> None:
    """Raises ModelError, with the reason, if a model's cache or attention cannot handle trees."""
    name = type(model).__name__
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        raise ModelError(
            f"{name} is an encoder-decoder model: paceline runs only decoder-only models"
        )
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{name} keeps a recurrent state, which cannot be rolled back to an accepted path: "
            "choose a model with an ordinary attention cache"
        )
    kinds = set(getattr(config, "layer_types", None) or ()) - {_FULL, _SLIDING}
    # GPT-Neo's local layers use cache slots as positions.
    kinds |= set(getattr(config, "attention_layers", None) or ()) & {"local"}
    if kinds:
        raise ModelError(
            f"{name} has layers of type {', '.join(sorted(kinds))}, whose cache cannot keep a "
            "tree path: choose a model with full or sliding-window attention"
        )
    attention = config._attn_implementation
    if attention not in _ATTENTION:
        raise ModelError(
            f"{name} runs attention {attention!r}, which does not take a tree mask: load it with "
            'attn_implementation="sdpa" or "eager"'
        )
    if model.training:
        raise ModelError(f"{name} is in training mode, so dropout is active: call model.eval()")
    # Each would choose its own trees, by its own clock, and wait for the others for ever.
    if _in_several_processes(model):
        raise ModelError(
            f"each pass of {name} runs in several processes together (tensor parallelism, FSDP or "
            "DeepSpeed ZeRO-3): load it whole in one process, or call its own generate"
        )


def cache_argument(model: torch.nn.Module) -> str:
    """What a model's forward calls its cache: "cache" since transformers 5.24."""
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"


def attention_windows(config: PreTrainedConfig) -> dict[str, int | None]:
    """Map each kind of layer to how far back it sees; None for no limit."""
    window = getattr(config, "sliding_window", None) or None
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    if not kinds:
        # Without a list of kinds all layers are alike, and slide if a window is set (Mistral).
        return {_FULL: window}
    return {kind: window if kind == _SLIDING else None for kind in kinds}


def longest_context(config: PreTrainedConfig) -> int | None:
    """Most positions that every pass treats alike; None if the configuration names no limit.

    A "yarn" embedding reaches as far as its factor says: who adds one to a configuration, as Qwen's
    models tell their users to, need not touch the maximum.

    The "longrope" embedding rotates all rows of a pass by other angles once one of them lies beyond
    the original context. A long guess would change the rows before it, so that context is the
    limit.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "yarn":
        scaled = (rope.get("factor") or 1) * (rope.get("original_max_position_embeddings") or 0)
        limits = [max(limits[0] or 0, int(scaled))]
    if rope.get("rope_type") == "longrope":
        limits.append(rope.get("original_max_position_embeddings"))
        limits.append(getattr(config, "original_max_position_embeddings", None))
    return min((limit for limit in limits if limit and limit > 0), default=None)


def _in_several_processes(model: PreTrainedModel) -> bool:
    """Whether processes wait for each other within a pass, unlike those with a whole model each."""
    world = torch.distributed
    if not (world.is_available() and world.is_initialized() and world.get_world_size() > 1):
        return False
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    # Torch's FSDP, of either version, marks what it manages.
    managed = bool(getattr(model, "_is_fsdp_managed_module", False))
    return bool(managed or (model.tp_size or 1) > 1 or is_deepspeed_zero3_enabled())
