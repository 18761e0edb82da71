"""Heads for tests: random numbers in the right places."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from paceline.drafters.trained_heads import ChimeraParts, EagleParts, HeadParts, MedusaParts
from paceline.drafters.trained_parts import BaseModel
from paceline.trained_configs import ChimeraConfig, EagleConfig, MedusaConfig
from tests.prompt_parts import TOY

SIZES = {"attention_heads": 4, "kv_heads": 2, "head_size": 8, "intermediate": 24}
"""Of the block in a draft model."""

_KINDS: dict[str, tuple[type[HeadParts[Any, Any]], Any, dict[str, int]]] = {
    "medusa": (MedusaParts, MedusaConfig, {}),
    "chimera": (ChimeraParts, ChimeraConfig, SIZES),
    "eagle": (EagleParts, EagleConfig, SIZES),
}


@cache
def saved_heads(
    method: str, hidden: int = 16, vocab: int = 16, fingerprint: str = TOY, **config: Any
) -> Path:
    """A folder with random parts for medusa, chimera or eagle, written once."""
    kind, config_type, sizes = _KINDS[method]
    chosen = config_type(**{**sizes, **config})
    base = BaseModel(fingerprint, "a test's model", hidden, vocab)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: 0.3 * torch.randn(shape, generator=generator)
        for name, shape in kind(chosen, base, {}).module_shapes().items()
    }
    if chosen.vocabulary:
        tensors["token_ids"] = torch.arange(0, vocab)[: chosen.vocabulary]
    folder = Path(tempfile.mkdtemp(prefix="heads-"))
    kind(chosen, base, tensors).save_pretrained(folder)
    return folder


saved_medusa = partial(saved_heads, "medusa")
saved_chimera = partial(saved_heads, "chimera")
saved_eagle = partial(saved_heads, "eagle")
