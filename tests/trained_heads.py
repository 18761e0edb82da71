"""Heads and draft models for tests: random numbers in the right places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from paceline.drafters.attention_rows import Stretches
from paceline.drafters.chimera_levels import encoded
from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.head_module import HeadModule, OutputHead
from paceline.drafters.medusa_heads import MedusaHeads
from paceline.drafters.ngram_cache import NgramCache
from paceline.drafters.trained_heads import ChimeraParts, EagleParts, HeadParts, MedusaParts
from paceline.drafters.trained_parts import BaseModel
from paceline.records import WordTable
from paceline.trained_configs import ChimeraConfig, EagleConfig, MedusaConfig
from tests.head_parts import SIZES

ModuleT = TypeVar("ModuleT", bound=HeadModule)

HIDDEN, VOCAB = 32, 16
"""As in the toy target."""


def output_head(vocabulary: int, hidden: int = HIDDEN, vocab: int = VOCAB) -> OutputHead:
    """The last rows of a random output head, or all of them."""
    noise = torch.Generator().manual_seed(2)
    weight = torch.randn(vocab, hidden, generator=noise) / hidden**0.5
    bias = 0.1 * torch.randn(vocab, generator=noise)
    return weight[-vocabulary:], bias[-vocabulary:]


def token_ids(vocabulary: int, vocab: int = VOCAB) -> torch.Tensor | None:
    """The last ids; None for all."""
    return torch.arange(vocab - vocabulary, vocab) if vocabulary else None


def shaken(module: ModuleT, noise: float) -> ModuleT:
    """With noise on all that is trained."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in module.parameters():
            part += (
                noise * torch.randn(part.shape, generator=random) / max(part.shape[-1], 1) ** 0.5
            )
    return module.requires_grad_(False)


def small_medusa(config: MedusaConfig, noise: float = 1.0) -> MedusaHeads:
    """Medusa heads on a random output head."""
    heads = MedusaHeads(config, output_head(config.vocabulary), token_ids(config.vocabulary))
    return shaken(heads, noise)


def small_chimera(config: ChimeraConfig, noise: float = 1.0) -> ChimeraModel:
    """A draft model on random embeddings, which programs may read."""
    return shaken(_on_words(ChimeraModel, config), noise)


def greens_of(model: ChimeraModel) -> NgramCache:
    """Where its drafts look green states up: nothing is kept."""
    return NgramCache(partial(encoded, model), 0)


def small_eagle(config: EagleConfig, noise: float = 1.0) -> EagleModel:
    """A draft model of EAGLE on random embeddings, which programs may read."""
    return shaken(_on_words(EagleModel, config), noise)


def _on_words(kind: Callable[..., ModuleT], config: ChimeraConfig | EagleConfig) -> ModuleT:
    """A small model with random embeddings."""
    torch.manual_seed(0)
    words = torch.randn(VOCAB, HIDDEN)
    some = config.vocabulary
    sized = replace(config, **SIZES)
    model = kind(sized, output_head(some), words.__getitem__, token_ids(some))
    model.words = WordTable(-1, words.data_ptr(), VOCAB, HIDDEN, words)
    return model


def unrolled(
    model: EagleModel, tokens: torch.Tensor, features: torch.Tensor, steps: int
) -> list[torch.Tensor]:
    """Outputs [1, length - 1, hidden] of each step after every place of a text [1, length]."""
    places = torch.arange(tokens.shape[1])
    points = places[None, :-1]
    sees = places <= points[..., None]
    stretches = Stretches(tokens, features, places[None], torch.zeros_like(tokens), points, sees)
    return model(stretches, steps)  # type: ignore[no-any-return]


def texts(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens [count, length], and states [count, length, HIDDEN]."""
    noise = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCAB, (count, length), generator=noise)
    return tokens, torch.randn(count, length, HIDDEN, generator=noise)


def learned(
    model: ChimeraModel,
    tokens: torch.Tensor,
    matures: torch.Tensor,
    points: torch.Tensor,
    own_guesses: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and draft states [texts, n, heads, …], the way training gets them: a text per row."""
    places = torch.arange(tokens.shape[1])
    position = places.expand_as(tokens)
    sees = places <= points[..., None]
    stretches = Stretches(tokens, matures, position, torch.zeros_like(tokens), points, sees)
    found = model(stretches, own_guesses)
    full = model.config.form == "full"
    logits = [ends if full else model.shared_head(ends) for ends in found.ends]
    return torch.stack(logits, dim=2), torch.stack(found.states, dim=2)


def save_medusa(folder: Path, config: MedusaConfig | None = None) -> Path:
    """A folder with random Medusa heads."""
    return _saved(MedusaParts, small_medusa(config or MedusaConfig(heads=3)), folder)


def save_chimera(folder: Path, config: ChimeraConfig | None = None) -> Path:
    """A folder with a random draft model of Chimera."""
    return _saved(ChimeraParts, small_chimera(config or ChimeraConfig(heads=3)), folder)


def save_eagle(folder: Path, config: EagleConfig | None = None) -> Path:
    """A folder with a random draft model of EAGLE."""
    return _saved(EagleParts, small_eagle(config or EagleConfig()), folder)


def _saved(kind: type[HeadParts[Any, Any]], module: HeadModule, folder: Path) -> Path:
    ids = {} if module.token_ids is None else {"token_ids": module.token_ids}
    tensors = {name: part.detach().half() for name, part in module.named_parameters()}
    base = BaseModel("toy", "a test's model", HIDDEN, VOCAB)
    kind(module.config, base, {**tensors, **ids}).save_pretrained(folder)
    return folder
