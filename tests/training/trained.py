"""A small training that the tests make again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.tiny import byte_tokenizer
from tests.tiny_models import new_model
from tests.training.shared import MODEL, make, prompt_file

from paceline.drafters.prompt_tokens import PromptConfig, PromptTokens
from paceline.drafters.trained_parts import BaseModel
from paceline.training.data import TrainingData
from paceline.training.ppd.recipe import PromptRecipe
from paceline.training.ppd.run import TrainingRun, train_prompt_tokens

RECIPE = {
    "steps": 12,
    "batch": 2,
    "points": 4,
    "longest": 48,
    "held_back": 0.3,
    "evaluate_every": 4,
    "checkpoint_every": 2,
}


def make_data(folder: Path) -> Path:
    """Answers of the toy model, in the vocabulary of bytes."""
    make(folder / "data", prompt_file(folder, 24), max_new_tokens=20)
    return folder / "data"


def train(
    data: Path,
    out: Path,
    config: PromptConfig | None = None,
    start: PromptTokens | None = None,
    fingerprint: str = MODEL,
    **recipe: Any,
) -> PromptTokens:
    """Train prompt tokens of a random model with the toy's vocabulary."""
    torch.set_num_threads(1)
    model = new_model("llama", vocab_size=len(byte_tokenizer()))
    base = BaseModel(fingerprint, "toy", 32, len(byte_tokenizer()))
    chosen = PromptRecipe(**{**RECIPE, **recipe})
    run = TrainingRun(config or PromptConfig(prompt_tokens=2), chosen, base, start)
    return train_prompt_tokens(model, TrainingData(data, fingerprint), run, out)
