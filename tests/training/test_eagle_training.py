"""EAGLE learns what it will be asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import naive_stream, play
from tests.tiny import byte_tokenizer
from tests.tiny_models import new_model, some_prompt
from tests.trained_heads import unrolled
from tests.training.packed import Noted
from tests.training.shared import MODEL, make, prompt_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, SiglipVisionConfig

from paceline.drafters import Eagle as EagleDrafter
from paceline.drafters import Host
from paceline.drafters.trained_heads import EagleParts
from paceline.drafters.trained_parts import BaseModel
from paceline.errors import ModelError, UsageError
from paceline.loop import Generation
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.words import output_head
from paceline.trained_configs import ChimeraConfig
from paceline.training.batches import Batch
from paceline.training.data import TrainingData
from paceline.training.dataset import TextSource
from paceline.training.method import Base
from paceline.training.method_run import MethodRun, train_method
from paceline.training.methods.chimera import Chimera, ChimeraSettings
from paceline.training.methods.draft import Draft, DraftSettings
from paceline.training.methods.eagle import Eagle, EagleSettings
from paceline.training.methods.last_layer import (
    final_norm_of,
    gains_of,
    last_layer_of,
    sized_like,
)

VOCAB = len(byte_tokenizer())
SMALL: dict[str, Any] = {
    "length": 48,
    "context": 8,
    "rows": 3,
    "steps": 6,
    "validate_every": 3,
    "validation": 0.3,
    "test": 0.3,
}


def base_of(name: str = "llama") -> Base:
    model = new_model(name, vocab_size=VOCAB).requires_grad_(False)
    weight, bias = output_head(model, None)
    about = BaseModel(MODEL, "toy", model.config.hidden_size, VOCAB)
    return Base(model, about, None, (weight.clone(), bias.clone()))


def a_batch(hidden: int, taps: int, length: int = 12) -> Batch:
    """One text, with places from the fourth token on."""
    noise = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCAB, (1, length), generator=noise)
    places = torch.arange(length)[None]
    return Batch(
        tokens=tokens,
        states=torch.randn(1, length, taps + 1, hidden, generator=noise).half(),
        greedy=tokens,
        text=torch.zeros_like(places),
        source=torch.zeros_like(places),
        position=places,
        start=torch.zeros_like(places),
        place=(places >= 3) & (places < length - 2),
        own=torch.ones(1, length, dtype=torch.bool),
    )


@pytest.mark.parametrize("features", ["last", "three"])
@torch.no_grad()
def test_each_step_learns_from_what_a_draft_has(features: Any) -> None:
    settings = EagleSettings(features=features, heads=3, block="random")
    method, scorer = Eagle(base := base_of(), settings), Noted()
    taps = settings.taps(base.model.config.num_hidden_layers)
    batch = a_batch(base.about.hidden_size, len(taps))
    method.forward(batch, scorer)  # type: ignore[arg-type]
    states = batch.states[:, :, :-1] if taps else batch.states[:, :, -1:]
    expected = unrolled(method.module, batch.tokens, states.flatten(2).float(), 3)
    assert len(scorer.told) == 3
    for step, (ends, points, _) in enumerate(scorer.told):
        there = points + step + 1 < batch.tokens.shape[1]
        wanted = method.module.ends(expected[step])[0, points[there]]
        torch.testing.assert_close(ends[there], wanted, atol=2e-5, rtol=1e-4)
    assert not scorer.penalties


def test_outputs_may_have_to_be_near_the_next_state() -> None:
    method = Eagle(base := base_of(), EagleSettings(state_weight=0.5, heads=2))
    scorer = Noted()
    method.forward(a_batch(base.about.hidden_size, 0), scorer)  # type: ignore[arg-type]
    assert len(scorer.penalties) == 2
    sum(scorer.penalties).backward()  # type: ignore[union-attr]
    assert method.module.enter.weight.grad is not None


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_it_begins_as_the_last_layer(name: str) -> None:
    base = base_of(name)
    layer: Any = last_layer_of(base.model)
    if name == "qwen2":
        layer.self_attn.k_proj.bias.normal_()
    method = Eagle(base, EagleSettings(block="last-layer"))
    assert torch.equal(method.module.query.weight, layer.self_attn.q_proj.weight)
    assert method.module.config.biases == (name == "qwen2")
    if name == "qwen2":
        assert torch.equal(method.module.key.bias, layer.self_attn.k_proj.bias)
        assert not Eagle(base, EagleSettings(block="random")).module.config.biases
    assert torch.equal(method.module.last_norm, final_norm_of(base.model).weight)
    narrow = Eagle(base, EagleSettings(block="last-layer", intermediate=5)).module
    rows = {tuple(row) for row in layer.mlp.gate_proj.weight.tolist()}
    assert narrow.gate.weight.shape[0] == 5
    assert all(tuple(row) in rows for row in narrow.gate.weight.tolist())
    with pytest.raises(ModelError, match="cannot be copied into EAGLE's block"):
        Eagle(base_of("gpt2"), EagleSettings())


def test_a_model_may_read_images_too() -> None:
    """As Gemma 3's larger ones do, whose configuration names layers of texts and of images."""
    vision = SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    text = new_model("gemma3", vocab_size=VOCAB).config
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config).eval().requires_grad_(False)
    head = model.lm_head.weight.clone(), torch.zeros(VOCAB)
    base = Base(model, BaseModel(MODEL, "toy", 32, VOCAB), None, head)
    Eagle.check(EagleSettings(), model)
    module = Eagle(base, EagleSettings()).module
    layer = model.get_decoder().layers[-1]
    assert torch.equal(module.query.weight, layer.self_attn.q_proj.weight)
    with pytest.raises(ModelError, match="reads more than text"):
        Draft.check(DraftSettings(), model)


@pytest.mark.parametrize(
    ("name", "inner"),
    [("gemma", "post_attention_layernorm"), ("gemma3", "pre_feedforward_layernorm")],
)
@torch.no_grad()
def test_gains_of_normalisations_are_copied_not_their_weights(name: str, inner: str) -> None:
    """Gemma's multiply by one more than their weights; Gemma 3's also follow the attention."""
    base = base_of(name)
    layer: Any = last_layer_of(base.model)
    norms = layer.input_layernorm, getattr(layer, inner), final_norm_of(base.model)
    for norm in norms:
        norm.weight.normal_()
    module = Eagle(base, EagleSettings(block="last-layer")).module
    for own, norm in zip((module.row_norm, module.inner_norm, module.last_norm), norms):
        torch.testing.assert_close(own, 1 + norm.weight)
    chimera = Chimera(base, ChimeraSettings(block="last-layer", final_norm=True)).module.encoder
    assert torch.equal(chimera.output_norm, module.last_norm)
    for gains in (torch.randn(6), torch.zeros(6)):  # of LayerNorms, too, whatever their biases
        other = torch.nn.LayerNorm(6)
        other.weight.copy_(gains)
        other.bias.normal_()
        assert torch.equal(gains_of(other), gains)


def test_blocks_are_as_large_as_a_layer() -> None:
    sizes = {
        name: sized_like(ChimeraConfig(), base_of(name).model.config)
        for name in ("llama", "gpt2", "gemma3")
    }
    llama = sizes["llama"]
    assert (llama.attention_heads, llama.kv_heads) == (4, 2)
    assert (llama.head_size, llama.intermediate) == (8, 48)
    assert (sizes["gpt2"].kv_heads, sizes["gpt2"].intermediate) == (4, 128)
    assert sized_like(ChimeraConfig(), base_of().model.config, 20).intermediate == 20


def test_positions_are_those_of_the_last_layer() -> None:
    """In Gemma 3, layers that see the whole text rotate by another base than those that slide."""
    for kind, rotary_base in (("sliding_attention", 10_000.0), ("full_attention", 1_000_000.0)):
        kinds = ["sliding_attention", "full_attention", kind]
        config = new_model("gemma3", layer_types=kinds).config
        assert sized_like(ChimeraConfig(), config).rotary_base == rotary_base


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="features must be one of last, three, got 'two'"):
        EagleSettings(features="two")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave it at 0, or leave features at last"):
        EagleSettings(features="three", state_weight=1.0)
    assert EagleSettings(features="three").taps(30) == (2, 15, 27)
    assert EagleSettings(features="three").taps(2) == (1, 2)


@pytest.mark.parametrize("features", ["last", "three"])
def test_what_was_trained_drafts(features: Any, tmp_path: Path) -> None:
    make(tmp_path / "data", prompt_file(tmp_path, 24), max_new_tokens=20)
    settings = EagleSettings(features=features, vocabulary=40, **SMALL)
    source = TextSource([TrainingData(tmp_path / "data", MODEL)], [])
    run = MethodRun(settings, base_of().about, source, tmp_path / "states")

    def opened() -> Any:
        return new_model("llama", vocab_size=VOCAB), byte_tokenizer()

    train_method(opened, opened, run, tmp_path / "out")
    found = EagleParts.from_pretrained(tmp_path / "out")
    assert found.acceptance is not None and len(found.acceptance.rows) == 3
    assert bool(found.config.layers) == (features == "three")
    target = CausalLMTarget(opened()[0], check=False)
    drafter = EagleDrafter(Host(target, MODEL), parts=str(tmp_path / "out"), depth=4)
    generation = Generation(prompt := some_prompt(9), drafter, Stopping(20))
    play(target, [generation], budget=9)
    assert generation.output == naive_stream(target, prompt, 20)
    other = replace(found.base, fingerprint="other")
    with pytest.raises(ModelError, match="paceline train eagle"):
        replace(found, base=other).check_base(MODEL)
