"""The contract of targets, checked on real models in miniature."""

from __future__ import annotations

import pytest
import torch
from tests.tiny_models import new_model

from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.prepare import prepare
from paceline.testing import check_target

# Far above what rounding explains, and far below what a wrong position, mask or place in the cache
# makes. Eager attention takes its softmax in single precision, whatever the model's own is.
TWO_LAYERS = {
    "llama": {"num_hidden_layers": 2},
    "gemma3": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"n_layer": 2},
}

TOLERANCE = {"native sdpa": 1e-9, "native eager": 1e-4, "packed sdpa": 1e-3}


@pytest.mark.parametrize(
    ("architecture", "weights", "attention", "static"),
    [
        ("llama", "native", "sdpa", False),
        ("gemma3", "native", "sdpa", True),
        ("gemma3", "native", "eager", False),
        ("gpt2", "native", "eager", True),
        ("gpt2", "packed", "sdpa", True),
        ("gemma3", "packed", "sdpa", False),
    ],
)
def test_models_keep_the_contract_of_targets(
    architecture: str, weights: str, attention: str, static: bool
) -> None:
    # Weights are packed in single precision only.
    dtype = torch.float64 if weights == "native" else torch.float32
    model = new_model(architecture, attention, dtype, **TWO_LAYERS[architecture])
    preparation = prepare(model, weights)
    assert (preparation.linears > 0) == (weights == "packed")
    check_target(
        lambda: CausalLMTarget(
            model, preparation=preparation, check=False, static=static, compiled=False
        ),
        tolerance=TOLERANCE[f"{weights} {attention}"],
        schedules=1,
        steps=10,
    )
