"""Refusal, in plain words, of models that paceline cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError
from paceline.models.draft_folder import is_shared_draft
from paceline.models.record import weights_damage
from paceline.models.source import ModelSource

if TYPE_CHECKING:
    from collections.abc import Collection

    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["check_complete", "check_config", "check_folder"]

_BIASES = {"attn": "attention_bias", "mlp": "mlp_bias"}
"""Parts of a model's name, and the setting that gives the layers there biases."""


def check_folder(source: ModelSource) -> None:
    """Raise ModelError for a folder that would only fail deep inside a loader: with no model, a
    draft without embeddings, or truncated weights."""
    folder = Path(source.location)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{source.name} is not a model folder: it has no config.json")
    if is_shared_draft(folder):
        raise ModelError(
            f"{source.name} is a draft model without embeddings of its own: name it as the draft "
            "of its base, as in --method speculative:draft=DIR"
        )
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{source.name} has no safetensors weights, the only ones paceline reads: save the "
            "model with save_pretrained, or use another"
        )
    damage = weights_damage(folder)
    if damage is not None:
        raise ModelError(
            f"the weights of {source.name} are damaged ({damage}): download or copy them again"
        )


def check_config(name: str, config: PreTrainedConfig) -> None:
    """Raise ModelError for an encoder-decoder model, or one that fills in masked words."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if config.is_encoder_decoder:
        raise ModelError(
            f"{name} is an encoder-decoder model ({config.model_type}): paceline accelerates "
            "decoder-only language models"
        )
    classes = set(config.architectures or ())
    only_masked = set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()) - set(
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    )
    if classes & only_masked:
        raise ModelError(
            f"{name} fills in masked words ({config.model_type}) and does not write text: "
            "name a causal language model"
        )


def check_complete(
    name: str, model: PreTrainedModel, missing: Collection[str], unexpected: Collection[str]
) -> None:
    """Raise ModelError for weights that do not fill the model, or have layers or biases that it
    lacks.

    missing, unexpected: parameters, as transformers reports them. Others that the model lacks are
    ignored, as transformers does: many folders hold more than the language model.
    """
    if missing:
        raise ModelError(
            f"the weights of {name} lack {len(missing)} parameters ({sorted(missing)[0]} first): "
            "they are incomplete or belong to another kind of model"
        )
    _check_layers(name, model, unexpected)
    _check_biases(name, model, unexpected)


def _check_layers(name: str, model: PreTrainedModel, unexpected: Collection[str]) -> None:
    from torch import nn

    for stack, layers in model.named_modules():
        if not isinstance(layers, nn.ModuleList):
            continue
        for key in unexpected:
            number = key.removeprefix(f"{stack}.").partition(".")[0]
            if key.startswith(f"{stack}.") and number.isdecimal() and int(number) >= len(layers):
                raise ModelError(
                    f"the weights of {name} have more than the {len(layers)} layers that its "
                    f"config.json names ({key}): correct num_hidden_layers there"
                )


def _check_biases(name: str, model: PreTrainedModel, unexpected: Collection[str]) -> None:
    from torch import nn

    modules, config = dict(model.named_modules()), model.config.get_text_config()
    for key in sorted(unexpected):
        place, _, kind = key.rpartition(".")
        # Other kinds of modules have buffers of this name, such as a mask, that nothing needs.
        if kind != "bias" or type(modules.get(place)) is not nn.Linear:
            continue
        settings = [setting for part, setting in _BIASES.items() if part in place]
        known = [each for each in settings if getattr(config, each, None) is False]
        raise ModelError(
            f"the weights of {name} have a bias that its config.json does not name ({key}): "
            f"correct {known[0] if known else 'model_type or the settings'} there"
        )
