"""Settings of GGUF files that transformers' reader drops: models are those that were converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_files import HEADS, KEY_HEADS, LAYERS, VOCAB, WIDTH, save_gguf
from transformers import LlamaConfig, NemotronConfig, PreTrainedConfig, Qwen2MoeConfig

import paceline
from paceline.errors import ModelError
from paceline.models import load_causal_lm
from paceline.models.gguf_file import GgufFile
from paceline.models.gguf_settings import restore_settings

SIZE = WIDTH // HEADS  # of a head
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

Change = Callable[[gguf.GGUFWriter], None]


def config_of(
    folder: Path, change: Change, family: str = "llama", **options: Any
) -> PreTrainedConfig:
    file = save_gguf(folder / "m.gguf", family, change=change, **options)
    return load_causal_lm(str(file), device="cpu").model.config


def rope_of(config: PreTrainedConfig) -> dict[str, Any]:
    found: dict[str, Any] = config.rope_parameters
    return found


def factors(theta: float, rope: Mapping[str, Any]) -> np.ndarray:
    """What llama.cpp's converter writes for a Llama from 3.1 on."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    length, factor, found = rope["original_max_position_embeddings"], rope["factor"], []
    for frequency in theta ** -(np.arange(0, SIZE, 2) / SIZE):
        turns = length * frequency / (2 * pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, dtype=np.float32)


def scaled(theta: float, rope: Mapping[str, Any]) -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_freq_base(theta)
        writer.add_tensor("rope_freqs.weight", factors(theta, rope))

    return change


def test_the_frequencies_of_a_llama_are_those_it_was_trained_with(tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf", change=scaled(500000.0, LLAMA3))
    model: Any = load_causal_lm(str(file), device="cpu").model
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        num_hidden_layers=LAYERS,
        vocab_size=VOCAB,
        rope_parameters={**LLAMA3, "rope_theta": 500000.0},
    )
    expected = type(model)(config).model.rotary_emb.inv_freq
    assert torch.equal(model.model.rotary_emb.inv_freq, expected)
    assert {**LLAMA3, "rope_theta": 500000.0}.items() <= rope_of(model.config).items()


def test_a_llama_by_the_name_of_another_family_is_a_llama(tmp_path: Path) -> None:
    def named(name: str) -> dict[str, Any]:
        return config_of(tmp_path, lambda writer: writer.add_name(name)).to_dict() | {
            "_model_name_or_path": ""
        }

    assert named("mistral") == named("any")


def test_factors_that_are_not_understood_are_refused(tmp_path: Path) -> None:
    strange = {**LLAMA3, "high_freq_factor": 8.0}
    with pytest.raises(ModelError, match="scales rotary frequencies in an unknown way"):
        config_of(tmp_path, scaled(500000.0, strange))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("family", ["qwen2", "gemma3"])  # whose layers transformers lists
def test_layers_without_end_are_refused_at_once(family: str, tmp_path: Path) -> None:
    def many(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][f"{family}.block_count"].value = 1 << 31

    with pytest.raises(ModelError, match="is damaged: it has 2 of 2147483648 layers"):
        config_of(tmp_path, many, family)


def test_a_norm_of_negative_epsilon_is_one_sentence(tmp_path: Path) -> None:
    def negative(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0]["qwen3.attention.layer_norm_rms_epsilon"].value = -1.0

    file = save_gguf(tmp_path / "m.gguf", "qwen3", change=negative)
    with pytest.raises(ModelError, match="NaN or infinite, so its weights are damaged"):
        paceline.load(str(file))


@pytest.mark.parametrize(
    ("key", "words"),
    [("rope.scaling.factor", "is not a number"), ("rope.scaling.type", "is not text")],
)
def test_a_setting_of_another_kind_is_one_sentence(key: str, words: str, tmp_path: Path) -> None:
    def wrong(writer: gguf.GGUFWriter) -> None:
        writer.add_array(f"llama.{key}", [1.0, 2.0])

    with pytest.raises(ModelError, match=rf"\(its llama\.{key} {words}\): use another file"):
        config_of(tmp_path, wrong)


def test_linear_and_yarn_scaling_are_kept(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)

    known = {"rope_type": "linear", "factor": 4.0}
    assert known.items() <= rope_of(config_of(tmp_path, linear)).items()
    # Only the layers that see all of the text.
    by_layer = rope_of(config_of(tmp_path, linear, "gemma3"))
    assert known.items() <= by_layer["full_attention"].items()
    assert by_layer["sliding_attention"]["rope_type"] == "default"
    known = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert known.items() <= rope_of(config_of(tmp_path, yarn, "qwen2")).items()


def test_unknown_scaling_is_refused(tmp_path: Path) -> None:
    def strange(writer: gguf.GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", "dynamic")
        writer.add_rope_scaling_factor(2.0)

    with pytest.raises(ModelError, match="scales rotary frequencies by 'dynamic'"):
        config_of(tmp_path, strange)


@pytest.mark.parametrize(
    ("family", "final", "attention"),
    [("gemma2", 1.0, 5.0), ("gemma2", 0.0, 5.0), ("gemma3", 1.0, 0.0)],
)
def test_large_scores_are_held_back_as_the_file_says(
    family: str, final: float, attention: float, tmp_path: Path
) -> None:
    def capped(writer: gguf.GGUFWriter) -> None:
        writer.add_final_logit_softcapping(final)
        writer.add_attn_logit_softcapping(attention)

    config = config_of(tmp_path, capped, family)
    assert config.final_logit_softcapping == (final or None)
    assert config.attn_logit_softcapping == (attention or None)


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("llama", "final_logit_softcapping"),
        ("llama", "attn_logit_softcapping"),
        ("gemma3", "attn_logit_softcapping"),  # in its config, but nothing reads it there
    ],
)
def test_a_model_that_would_not_hold_scores_back_is_refused(
    family: str, setting: str, tmp_path: Path
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_float32(f"{family}.{setting}", 5.0)

    with pytest.raises(ModelError, match=f"has {setting} = 5, which"):
        config_of(tmp_path, change, family)


def test_local_layers_have_the_frequencies_of_the_file(tmp_path: Path) -> None:
    def local(base: float) -> Change:
        return lambda writer: writer.add_rope_freq_base_swa(base)

    rope = rope_of(config_of(tmp_path, local(500.0), "gemma3"))
    assert rope["sliding_attention"]["rope_theta"] == 500.0
    assert rope["full_attention"]["rope_theta"] == 10000.0
    assert rope_of(config_of(tmp_path, local(10000.0)))["rope_theta"] == 10000.0
    with pytest.raises(ModelError, match="rotates local layers by other frequencies"):
        config_of(tmp_path, local(500.0))


def test_sizes_are_those_of_the_file_and_not_the_familys_usual_ones(tmp_path: Path) -> None:
    def nothing(writer: gguf.GGUFWriter) -> None:
        pass

    assert config_of(tmp_path, nothing, "qwen3").head_dim == SIZE
    assert config_of(tmp_path, nothing, "gpt2", context=48).max_position_embeddings == 48


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_attention_of_gemma_is_scaled_by_the_heads_size(family: str, tmp_path: Path) -> None:
    assert config_of(tmp_path, lambda writer: None, family).query_pre_attn_scalar == SIZE


def test_experts_and_norms_are_those_of_the_file(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_feed_forward_length(96)
        writer.add_expert_shared_feed_forward_length(160)
        writer.add_layer_norm_eps(0.5)

    file = GgufFile(save_gguf(tmp_path / "m.gguf", change=change))
    experts = Qwen2MoeConfig(num_hidden_layers=LAYERS)
    restore_settings(experts, file)
    assert experts.moe_intermediate_size == 96
    assert experts.shared_expert_intermediate_size == 160
    norms = NemotronConfig(num_hidden_layers=LAYERS, head_dim=SIZE, partial_rotary_factor=1.0)
    restore_settings(norms, file)
    assert norms.norm_eps == 0.5


def test_sizes_that_no_setting_gives_are_one_sentence(tmp_path: Path) -> None:
    def narrow(writer: gguf.GGUFWriter) -> None:
        writer.add_feed_forward_length(WIDTH // 2)

    with pytest.raises(ModelError, match="other sizes than transformers' model of its family: use"):
        config_of(tmp_path, narrow)


def test_a_part_of_each_head_is_rotated_only_where_the_family_can(tmp_path: Path) -> None:
    def half(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_dimension_count(SIZE // 2)

    with pytest.raises(ModelError, match="rotates 32 of 64 numbers of a head"):
        config_of(tmp_path, half, "qwen2")


def test_biases_have_a_place(tmp_path: Path) -> None:
    def biased(writer: gguf.GGUFWriter) -> None:
        for layer in range(LAYERS):
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                small = WIDTH * KEY_HEADS // HEADS if name in ("attn_k", "attn_v") else WIDTH
                writer.add_tensor(f"blk.{layer}.{name}.bias", np.ones(small, dtype=np.float32))

    assert config_of(tmp_path, biased).attention_bias


def test_tensors_without_a_place_are_named(tmp_path: Path) -> None:
    def more(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_sinks.weight", np.ones(HEADS, dtype=np.float32))

    with pytest.raises(ModelError, match=r"holds blk.0.attn_sinks.weight, for which .* no place"):
        config_of(tmp_path, more)
