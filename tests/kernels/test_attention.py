"""Who may borrow a model's attention, and when it is given back."""

from __future__ import annotations

from tests.tiny_models import new_model

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
