"""Inputs of models that take more than text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tiny_models import new_model
from transformers import LlamaForCausalLM, PreTrainedModel

from paceline.errors import UsageError
from paceline.integrations import Pace

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


class Pictured(LlamaForCausalLM):
    """Like Gemma 3, takes what an encoder of pictures says; like Qwen2.5-VL, positions of four
    axes."""

    input_modalities = ("image", "text")

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: Any = None,
        position_ids: torch.Tensor | None = None,
        mm_encoder_outputs: dict[str, Any] | None = None,
        mm_token_type_ids: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        if position_ids is not None and position_ids.dim() == 3:
            position_ids = position_ids[0]
        return super().forward(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, **others
        )

    def _prepare_position_ids_for_generation(self, *given: Any) -> torch.Tensor:
        positions: torch.Tensor = super()._prepare_position_ids_for_generation(*given)
        return positions.expand(4, *positions.shape)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return new_model("llama", kind=Pictured, pad_token_id=0)


def batch(rows: int) -> dict[str, torch.Tensor]:
    ids = torch.tensor([PROMPT, [0, 0, 0, *PROMPT[3:]]])[:rows]
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("types", [False, True], ids=["tokenizer", "processor"])
def test_a_multimodal_model_writes_from_text_alone(
    model: PreTrainedModel, rows: int, types: bool
) -> None:
    request: dict[str, Any] = {**batch(rows), "max_new_tokens": 16}
    if types:
        request["mm_token_type_ids"] = torch.zeros_like(request["input_ids"])
    expected = model.generate(**request)
    found = model.generate(**request, custom_generate=Pace("anpd", budget=8))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mm_encoder_outputs", {"image": torch.ones(1, 2, 32)}),
        ("mm_token_type_ids", torch.tensor([[0] * 8 + [1] * 2])),
    ],
)
def test_pictures_are_refused_by_name(model: PreTrainedModel, name: str, value: Any) -> None:
    request = {**batch(1), name: value, "max_new_tokens": 4}
    with pytest.raises(UsageError, match=f"model input '{name}' is not supported"):
        model.generate(**request, custom_generate=Pace("anpd", budget=8))


@pytest.mark.parametrize(
    "positions",
    [
        torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]),
        torch.arange(10).expand(3, 1, 10) + torch.tensor([0, 0, 1])[:, None, None],
    ],
    ids=["shifted", "an axis of a picture"],
)
def test_positions_that_do_not_count_the_tokens_are_refused(
    model: PreTrainedModel, positions: torch.Tensor
) -> None:
    request = {**batch(1), "position_ids": positions, "max_new_tokens": 4}
    with pytest.raises(UsageError, match="position_ids other than"):
        model.generate(**request, custom_generate=Pace("anpd", budget=8))
