"""Heads for tests: random numbers in the right places."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from paceline.drafters.head_configs import ChimeraConfig, EagleConfig, MedusaConfig
from paceline.drafters.trained_heads import ChimeraParts, EagleParts, MedusaParts
from paceline.drafters.trained_parts import BaseModel
from tests.prompt_parts import TOY


@cache
def saved_medusa(hidden: int = 16, vocab: int = 16, fingerprint: str = TOY, **config: Any) -> Path:
    """A folder with random Medusa heads, written once."""
    chosen = MedusaConfig(**config)
    base = BaseModel(fingerprint, "a test's model", hidden, vocab)
    return _saved(MedusaParts(chosen, base, {}), chosen.vocabulary)


@cache
def saved_chimera(hidden: int = 16, vocab: int = 16, fingerprint: str = TOY, **config: Any) -> Path:
    """A folder with random Chimera parts, written once."""
    sizes = {"attention_heads": 4, "kv_heads": 2, "head_size": 8, "intermediate": 24}
    chosen = ChimeraConfig(**{**sizes, **config})
    base = BaseModel(fingerprint, "a test's model", hidden, vocab)
    return _saved(ChimeraParts(chosen, base, {}), chosen.vocabulary)


@cache
def saved_eagle(hidden: int = 16, vocab: int = 16, fingerprint: str = TOY, **config: Any) -> Path:
    """A folder with random EAGLE parts, written once."""
    sizes = {"attention_heads": 4, "kv_heads": 2, "head_size": 8, "intermediate": 24}
    chosen = EagleConfig(**{**sizes, **config})
    base = BaseModel(fingerprint, "a test's model", hidden, vocab)
    return _saved(EagleParts(chosen, base, {}), chosen.vocabulary)


def _saved(parts: MedusaParts | ChimeraParts | EagleParts, vocabulary: int) -> Path:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: 0.3 * torch.randn(shape, generator=generator)
        for name, shape in parts.module_shapes().items()
    }
    if vocabulary:
        tensors["token_ids"] = torch.arange(0, parts.base.vocab_size)[:vocabulary]
    folder = Path(tempfile.mkdtemp(prefix="heads-"))
    type(parts)(parts.config, parts.base, tensors).save_pretrained(folder)  # type: ignore[arg-type]
    return folder
