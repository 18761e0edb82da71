"""Who may borrow a model's attention, and when it is given back."""

from __future__ import annotations

import pytest
import torch
from tests.c_library import needs_library
from tests.tiny_models import new_model
from transformers import LlamaConfig

from paceline.kernels.attention import GROUPED, attending_by_text


@needs_library
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


@needs_library
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


@needs_library
@pytest.mark.parametrize(
    ("name", "attention"), [("llama", "sdpa"), ("gemma2", "eager"), ("gemma3", "sdpa")]
)
def test_other_callers_of_a_borrowed_model_get_what_they_got_before(
    name: str, attention: str
) -> None:
    """Also of prompts padded on the left, and if the model is given back during their pass."""
    model = new_model(name, attention)
    ids = torch.tensor([[0, 0, 0, 5, 6, 7], [1, 2, 3, 4, 5, 6]])
    padded = {"attention_mask": torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6])}
    seen = padded["attention_mask"].bool()
    with torch.no_grad():
        alone, batch = model(ids[1:]).logits, model(ids, **padded).logits
        with attending_by_text(model):
            assert model.config._attn_implementation == GROUPED
            torch.testing.assert_close(model(ids, **padded).logits[seen], batch[seen])
        borrowing = attending_by_text(model)
        borrowing.__enter__()
        leave = model.model.layers[1].register_forward_pre_hook(
            lambda *_: (borrowing.__exit__(None, None, None), leave.remove())[-1]
        )
        torch.testing.assert_close(model(ids[1:]).logits, alone)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("width", range(1, 6))
def test_a_mask_may_be_one_row_for_all(width: int) -> None:
    model, ids = new_model("llama"), torch.arange(5, 5 + width)[None]
    mask = torch.zeros(1, 1, 1, width)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        with attending_by_text(model):
            torch.testing.assert_close(model(ids, attention_mask=mask).logits, expected)
