"""Who may borrow a model's attention, and when it is given back."""

from __future__ import annotations

from tests.tiny_models import new_model
from transformers import LlamaConfig

from paceline.kernels.attention import GROUPED, attending_by_text


def test_the_last_who_borrows_a_model_gives_its_attention_back() -> None:
    model = new_model("llama")
    before = model.config._attn_implementation
    first, second = attending_by_text(model), attending_by_text(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert model.config._attn_implementation == GROUPED
    second.__exit__(None, None, None)
    assert model.config._attn_implementation == before


class SeeingConfig(LlamaConfig):
    """Of a model with an encoder of pictures."""

    sub_configs = {"vision_config": LlamaConfig}  # noqa: RUF012


def test_what_is_within_a_model_gets_its_own_attention_back() -> None:
    """An encoder may run another one than the text's part."""
    model = new_model("llama")
    model.config.vision_config = LlamaConfig()
    model.config.vision_config._attn_implementation = "eager"
    model.config.__class__ = SeeingConfig
    with attending_by_text(model):
        assert model.config._attn_implementation == GROUPED
    assert model.config._attn_implementation == "sdpa"
    assert model.config.vision_config._attn_implementation == "eager"
