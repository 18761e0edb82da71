"""Tiny random models of many architectures, made in milliseconds."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from paceline.kernels.block_layers import Int4Linear, Int8Linear
from paceline.kernels.linear import FastLinear
from paceline.kernels.native.calls import unavailable

VOCAB = 64

_COMMON = {"vocab_size": VOCAB, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
_LLAMA = {
    **_COMMON,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

# Name -> what its classes begin with, and its configuration.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _LLAMA),
    "qwen2": ("Qwen2", _LLAMA),
    "qwen3": ("Qwen3", {**_LLAMA, "head_dim": 8}),
    "mistral": ("Mistral", {**_LLAMA, "sliding_window": 8}),
    "gemma": ("Gemma", {**_LLAMA, "head_dim": 8}),
    "gemma3": (
        "Gemma3",
        {
            **_LLAMA,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 8,
            "layer_types": _MIXED,
        },
    ),
    # Scores of attention and of the vocabulary are capped.
    "gemma2": (
        "Gemma2",
        {**_LLAMA, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    ),
    "gpt_neox": (
        "GPTNeoX",
        {
            **_COMMON,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
        },
    ),
    "gpt2": ("GPT2", {**_COMMON, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}),
    "cohere": ("Cohere", _LLAMA),
    "olmo2": ("Olmo2", _LLAMA),
    "phi": ("Phi", {**_LLAMA, "num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    # All layers slide, though none of these configurations lists the kinds of layers. The window
    # is wider than the self-check's texts, as it is in practice.
    "phi3": ("Phi3", {**_LLAMA, "sliding_window": 16}),
    "starcoder2": ("Starcoder2", {**_LLAMA, "sliding_window": 16}),
    "ministral3": ("Ministral3", {**_LLAMA, "head_dim": 8, "sliding_window": 16}),
    "mixtral": ("Mixtral", {**_LLAMA, **_EXPERTS, "sliding_window": 16}),
    "phimoe": ("Phimoe", {**_LLAMA, **_EXPERTS, "sliding_window": 16}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **_LLAMA,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "use_sliding_window": True,
            "sliding_window": 16,
        },
    ),
    # Its local layers mask by cache slot inside the model, whatever mask they are given.
    "gpt_neo": (
        "GPTNeo",
        {
            **_COMMON,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 256,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 16,
        },
    ),
    # Its rotary angles depend on the longest position in the pass: a tree that reaches beyond
    # position 32 changes the rows of all its nodes.
    "phi3 longrope": (
        "Phi3",
        {
            **_LLAMA,
            "sliding_window": None,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 4,
                "long_factor": [4.0] * 4,
            },
        },
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            **_LLAMA,
            "head_dim": 8,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 0,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    # Computes attention in single precision, whatever its own is.
    "gptj": (
        "GPTJ",
        {
            **_COMMON,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 256,
            "rotary_dim": 4,
        },
    ),
    "mamba": (
        "Mamba",
        {**_COMMON, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "expand": 1},
    ),
}


def new_model(
    architecture: str,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
    kind: type[PreTrainedModel] | None = None,
    **changes: Any,
) -> PreTrainedModel:
    """A model of one's own, to be changed at will. `kind`: its class, if not the usual one."""
    prefix, settings = ARCHITECTURES[architecture]
    suffix = "TextConfig" if prefix == "Gemma3" else "Config"
    config = getattr(transformers, prefix + suffix)(**{**settings, **changes})
    config._experts_implementation = "eager"  # the fused one has no float64
    usual = getattr(transformers, prefix + ("LMHeadModel" if prefix == "GPT2" else "ForCausalLM"))
    model = (kind or usual)._from_config(config, attn_implementation=attention)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            # Far from the usual 0.02, so that logits depend on every token that is attended to.
            if parameter.dim() >= 2:
                parameter.normal_(std=0.4, generator=generator)
    return model.to(dtype).eval()


@cache
def tiny_model(
    architecture: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A model shared by tests, which must not change it."""
    return new_model(architecture, attention, dtype)


def some_prompt(length: int, seed: int = 0, vocab_size: int = VOCAB) -> list[int]:
    """Random tokens with a part that comes twice, so that n-gram drafters have something."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(vocab_size, (length,), generator=generator).tolist()
    third = length // 3
    return tokens[: length - third] + tokens[:third]


def needs_kernels(kind: type[FastLinear] | str) -> None:
    """Skip where a layer or weights of this kind cannot be had, because there is no C library."""
    if kind in (Int8Linear, Int4Linear, "int8", "int4") and unavailable():
        pytest.skip(unavailable())
