"""What a recording takes of memory while it becomes steps."""

from __future__ import annotations

from weakref import WeakSet

import pytest
import torch
from tests.c_library import needs_library
from tests.tiny_models import new_model

from paceline.targets.late_model import ModelFacts
from paceline.targets.one_call import lowering
from paceline.targets.one_call.recording import Node, record
from paceline.targets.prepare import prepare

pytestmark = needs_library


def most_codes(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Codes that are held at once, at most, while a model of so many layers is lowered."""
    model = new_model("llama", num_hidden_layers=layers)
    prepare(model)
    recording = record(model, ModelFacts.of(model).windows)
    made: WeakSet[torch.Tensor] = WeakSet()
    new_codes, take = lowering.new_codes, lowering._Lowering.take
    held = []

    def noted(value: int, shape: torch.Size, axis: int) -> torch.Tensor:
        codes = new_codes(value, shape, axis)
        made.add(codes)
        return codes

    def measured(self: lowering._Lowering, node: Node) -> None:
        take(self, node)
        held.append(sum(each.numel() for each in made))

    with monkeypatch.context() as patch:
        patch.setattr(lowering, "new_codes", noted)
        patch.setattr(lowering._Lowering, "take", measured)
        lowering.lower(model, recording)
    return max(held)


def test_codes_of_one_layer_are_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_codes(8, monkeypatch) <= most_codes(2, monkeypatch)


def test_a_model_is_recorded_where_its_user_infers() -> None:
    model = new_model("qwen2")
    prepare(model)
    windows = ModelFacts.of(model).windows
    with torch.inference_mode():
        program = lowering.lower(model, record(model, windows))
    assert program.steps
