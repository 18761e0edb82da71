"""Small trainings of heads that the tests make again and again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from paceline.training.heads.recipe import ChimeraRecipe, HeadRecipe
from paceline.training.heads.run import HeadRun, train_chimera, train_medusa
from tests.tiny import byte_tokenizer
from tests.tiny_models import new_model
from tests.trained_heads import SIZES
from tests.training.shared import MODEL
from transformers import PreTrainedModel

from paceline.drafters.trained_heads import ChimeraConfig, ChimeraParts, MedusaConfig, MedusaParts
from paceline.drafters.trained_parts import BaseModel
from paceline.training.data import TrainingData

VOCAB = len(byte_tokenizer())
RECIPE = {
    "steps": 12,
    "batch": 2,
    "points": 4,
    "longest": 48,
    "held_back": 0.3,
    "evaluate_every": 4,
    "checkpoint_every": 2,
}
MEDUSA = MedusaConfig(heads=2)
CHIMERA = ChimeraConfig(heads=2, vocabulary=40)


def base_of(fingerprint: str = MODEL) -> BaseModel:
    """What the parts say about their model."""
    return BaseModel(fingerprint, "toy", 32, VOCAB)


def train(
    data: Path,
    out: Path,
    config: MedusaConfig | ChimeraConfig = CHIMERA,
    fingerprint: str = MODEL,
    model: PreTrainedModel | None = None,
    cache: Path | None = None,
    saved: Any = "float16",
    **recipe: Any,
) -> MedusaParts | ChimeraParts:
    """Train heads of a random model with the toy's vocabulary."""
    torch.set_num_threads(1)
    model = model or new_model("llama", vocab_size=VOCAB)
    texts, base, chosen = (
        TrainingData(data, fingerprint),
        base_of(fingerprint),
        {**RECIPE, **recipe},
    )
    if isinstance(config, MedusaConfig):
        medusa = HeadRun(config, HeadRecipe(**chosen), base, saved)
        return train_medusa(model, texts, medusa, out, cache)
    chimera = HeadRun(replace(config, **SIZES), ChimeraRecipe(**chosen), base, saved)
    return train_chimera(model, texts, chimera, out, cache)
