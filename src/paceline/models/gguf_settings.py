"""Settings of a GGUF file that transformers' reader drops, without which a model computes something
else than the published one: rotary frequencies above all.

Keys are those of the GGUF specification, and what they mean is what llama.cpp does with them.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError
from paceline.models.gguf_file import GgufFile

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What all Llamas from 3.1 on have in common; a file has only the factors that follow from it."""

_ROTATE_A_PART = {"phi3", "stablelm", "nemotron"}

_WIDE_GEMMA = {"gemma2": 46, "gemma3_text": 62}
"""Families that scale attention by the head's size, and how many layers those of their models have
that scale by the hidden size per head: llama.cpp recognises the models of 27B by that."""

_OWN_SIZES = {
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "norm_eps": "attention.layer_norm_epsilon",  # of Nemotron
}
"""Settings that transformers takes to be those of the family's first model."""

_CAPS = {
    "final_logit_softcapping": {"gemma2", "gemma3_text", "gemma4_text"},
    "attn_logit_softcapping": {"gemma2"},
}
"""Settings that hold back large scores, and the families whose transformers' model heeds them."""

_BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}


def check_layers(file: GgufFile, said: int) -> None:
    """Raise ModelError if a file has fewer layers than this, by its own words."""
    layers = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    if said > max(1, len(layers)):
        raise ModelError(f"{file.path} is damaged: it has {len(layers)} of {said} layers")


def restore_settings(config: PreTrainedConfig, file: GgufFile) -> None:
    """Set what the file says and transformers has not read. Raises ModelError for a setting that
    transformers' model of the family cannot have."""
    check_layers(file, config.num_hidden_layers)
    size = _of(file, "attention.key_length")
    # Gemma 4 has heads of two sizes, of which transformers reads this one.
    if size and "head_dim" in config.to_dict() and config.model_type != "gemma4_text":
        config.head_dim = size
    if config.model_type == "gpt2":
        config.n_positions = _of(file, "context_length") or config.n_positions
    if rope := getattr(config, "rope_parameters", None):
        _restore_rope(config, rope, file)
    for setting, families in _CAPS.items():
        cap = _of(file, setting)
        if cap and config.model_type not in families:
            raise _unusable(file, f"has {setting} = {cap:g}")
        if cap is not None and config.model_type in families:
            setattr(config, setting, float(cap) or None)  # 0 says that there is none
    for setting, tensor in _BIASES.items():
        if tensor in file.tensors and getattr(config, setting, None) is False:
            setattr(config, setting, True)
    if hasattr(config, "sliding_window"):  # 0 says that there is none
        window = config.sliding_window or _of(file, "attention.sliding_window")
        config.sliding_window = window or None
    if wide := _WIDE_GEMMA.get(config.model_type):
        per_head = config.hidden_size // config.num_attention_heads
        is_wide = config.num_hidden_layers == wide
        config.query_pre_attn_scalar = per_head if is_wide else config.head_dim
    for setting, key in _OWN_SIZES.items():
        if hasattr(config, setting) and (value := _of(file, key)):
            setattr(config, setting, value)


def _of(file: GgufFile, key: str, kind: type = Real) -> Any:
    """A setting; None if there is none. Raises ModelError for one of another kind."""
    value = file.metadata.get(name := f"{file.architecture}.{key}")
    if value is not None and not isinstance(value, kind):
        what = "a number" if kind is Real else "text"
        raise ModelError(
            f"{file.path} cannot be read (its {name} is not {what}): use another file, or the "
            "model as safetensors"
        )
    return value


def _restore_rope(config: PreTrainedConfig, rope: dict[str, Any], file: GgufFile) -> None:
    by_layer = "full_attention" in rope  # local layers have frequencies of their own, never scaled
    chosen = rope["full_attention"] if by_layer else rope
    if base := _of(file, "rope.freq_base"):
        chosen["rope_theta"] = float(base)
    if local := _of(file, "rope.freq_base_swa"):
        if by_layer:
            rope["sliding_attention"]["rope_theta"] = float(local)
        elif local != chosen["rope_theta"]:
            raise _unusable(file, "rotates local layers by other frequencies")
    if not by_layer:
        _restore_part(config, chosen, file)
    if chosen.get("rope_type", "default") != "default":
        return  # transformers knows how this family scales
    if "rope_freqs.weight" in file.tensors:
        _restore_llama3(config, chosen, file)
    elif "rope_factors_short.weight" in file.tensors:
        _restore_longrope(config, chosen, file)
    else:
        chosen |= _scaling(config, file)


def _restore_part(config: PreTrainedConfig, rope: dict[str, Any], file: GgufFile) -> None:
    """How much of each head is rotated."""
    rotated, size = _of(file, "rope.dimension_count"), _head_size(config)
    known = (size * rope.get("partial_rotary_factor", 1.0), getattr(config, "rotary_dim", None))
    if not rotated or rotated in known:
        return
    if config.model_type not in _ROTATE_A_PART:
        raise _unusable(file, f"rotates {rotated} of {size} numbers of a head")
    rope["partial_rotary_factor"] = rotated / size


def _head_size(config: PreTrainedConfig) -> int:
    size: int | None = getattr(config, "head_dim", None)
    return size or int(config.hidden_size // config.num_attention_heads)


def _restore_llama3(config: PreTrainedConfig, rope: dict[str, Any], file: GgufFile) -> None:
    """The settings from which the file's factors follow."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    factors = _numbers(file, "rope_freqs.weight")
    exponents = torch.arange(0, _head_size(config), 2, device="cpu") / _head_size(config)
    rope |= {**_LLAMA3, "factor": round(float(factors.max()), 4)}
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    expected, fits = rope["rope_theta"] ** -exponents, factors.shape == exponents.shape
    if not (fits and torch.allclose(frequencies * factors, expected, 1e-3)):
        raise _unusable(file, "scales rotary frequencies in an unknown way")


def _restore_longrope(config: PreTrainedConfig, rope: dict[str, Any], file: GgufFile) -> None:
    known = getattr(config, "original_max_position_embeddings", config.max_position_embeddings)
    length = _of(file, "rope.scaling.original_context_length") or known
    config.original_max_position_embeddings = length
    rope |= {
        "rope_type": "longrope",
        "short_factor": _numbers(file, "rope_factors_short.weight").tolist(),
        "long_factor": _numbers(file, "rope_factors_long.weight").tolist(),
        "original_max_position_embeddings": length,
    }
    if scale := _of(file, "rope.scaling.attn_factor"):
        rope["attention_factor"] = float(scale)


def _scaling(config: PreTrainedConfig, file: GgufFile) -> dict[str, Any]:
    """Scaling that is given by numbers alone; {} if there is none."""
    kind = _of(file, "rope.scaling.type", str) or "linear"
    factor = _of(file, "rope.scaling.factor") or _of(file, "rope.scale_linear") or 1.0
    if kind == "none" or factor == 1.0:
        return {}
    if kind == "linear":
        return {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn" and _of(file, "rope.scaling.attn_factor") in (None, 1.0):
        original = _of(file, "rope.scaling.original_context_length")
        length = {"original_max_position_embeddings": original or config.max_position_embeddings}
        return {"rope_type": kind, "factor": float(factor), **length}
    raise _unusable(file, f"scales rotary frequencies by {kind!r}")


def _numbers(file: GgufFile, name: str) -> torch.Tensor:
    import torch

    tensor = file.tensors.get(name)
    if tensor is None or tensor.type != "F32":
        raise _unusable(file, f"lacks {name} in float32")
    return file.data(tensor).view(torch.float32).flatten().clone()


def _unusable(file: GgufFile, what: str) -> ModelError:
    return ModelError(
        f"{file.path} {what}, which transformers' {file.architecture} models do not: use the model "
        "as safetensors"
    )
