"""Small trainings of methods that the tests make again and again."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from tests.tiny import byte_tokenizer
from tests.tiny_models import new_model
from tests.training.shared import MODEL
from transformers import PreTrainedModel

from paceline.drafters.trained_parts import BaseModel
from paceline.training.data import TrainingData
from paceline.training.dataset import TextSource
from paceline.training.method import Finished
from paceline.training.method_run import MethodRun, train_method
from paceline.training.methods import TRAINED
from paceline.training.order import PromptFile

VOCAB = len(byte_tokenizer())
SETTINGS: dict[str, Any] = {
    "heads": 2,
    "steps": 12,
    "rows": 3,
    "length": 40,
    "context": 12,
    "validation": 0.2,
    "test": 0.2,
    "validate_every": 4,
    "checkpoint_every": 2,
    "learning_rate": 0.01,
    "vocabulary": 40,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "medusa": {},
    "chimera": {"order": 2},
    "eagle": {"features": "three", "save_dtype": "int8"},
    "ppd": {"points": 6},
    "draft": {"layers": "0,2"},
}
"""What each method is given besides."""
BASE = BaseModel(MODEL, "toy", 32, VOCAB)


def train(
    data: Path,
    out: Path,
    method: str,
    cache: Path,
    files: tuple[PromptFile, ...] = (),
    fingerprint: str = MODEL,
    model: PreTrainedModel | None = None,
    **settings: Any,
) -> Finished:
    """Train a method for a random model with the toy's vocabulary."""
    torch.set_num_threads(1)
    base = BaseModel(fingerprint, "toy", 32, VOCAB)
    source = TextSource([TrainingData(data, fingerprint)], files)
    run = MethodRun(TRAINED[method](**{**SETTINGS, **settings}), base, source, cache)
    opened = model or new_model("llama", vocab_size=VOCAB)

    def open_model() -> Any:
        return deepcopy(opened), byte_tokenizer() if files else None

    return train_method(open_model, open_model, run, out)
