"""A small training of a draft model that the tests make again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.tiny import byte_tokenizer
from tests.tiny_models import new_model
from tests.training.shared import MODEL
from transformers import PreTrainedModel

from paceline.drafters.trained_parts import BaseModel
from paceline.training.data import TrainingData
from paceline.training.draft.recipe import DraftConfig, DraftRecipe
from paceline.training.draft.run import DraftRun, TrainedDraft, train_draft

RECIPE = {
    "steps": 12,
    "batch": 2,
    "points": 16,
    "top": 8,
    "longest": 48,
    "held_back": 0.3,
    "evaluate_every": 4,
    "checkpoint_every": 2,
}
CONFIG = {"layers": (0, 2), "vocabulary": 40}


def base_model(architecture: str = "llama", **changes: Any) -> PreTrainedModel:
    """A random model with the toy's vocabulary."""
    return new_model(architecture, **{"vocab_size": len(byte_tokenizer()), **changes})


def train(
    data: Path,
    out: Path,
    fingerprint: str = MODEL,
    config: dict[str, Any] | None = None,
    model: PreTrainedModel | None = None,
    **recipe: Any,
) -> TrainedDraft:
    """Train a draft model of a random one."""
    torch.set_num_threads(1)
    base = BaseModel(fingerprint, "toy", 32, len(byte_tokenizer()))
    run = DraftRun(DraftConfig(**(config or CONFIG)), DraftRecipe(**{**RECIPE, **recipe}), base)
    return train_draft(model or base_model(), TrainingData(data, fingerprint), run, out)
