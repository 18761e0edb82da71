"""Cutting some layers of a model out into a model of their own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelError, UsageError
from paceline.models.draft_model import assemble, head_tensors, layers_of, own_tensors
from paceline.targets.trials import differences, narrow_windows

# Configuration lists with an entry per layer.
_BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "layer_rope_theta")

_TRIAL_TOKENS = 12
# Largest `_gap` accepted for a float32 base, and for any other. Both sides compute the same, so
# there is hardly any rounding.
_EXACT, _ROUGH = 1e-4, 1e-1


def cut(
    base: PreTrainedModel, layers: Sequence[int], vocabulary: torch.Tensor | None = None
) -> PreTrainedModel:
    """Make a model of some layers of `base`: float32 copies, on its embeddings and output head.

    base: as loaded, not prepared. layers: those to keep, from 0, ascending. vocabulary: ids [count]
    of the tokens it can guess, ascending; None for all.

    Raises UsageError for layers that the base lacks or that are not ascending; ModelError for a
    model that reads more than text, or whose layers depend on their position.
    """
    name = type(base).__name__
    check_text_only(base)
    check_layers(layers, base.config.num_hidden_layers)
    tensors = _kept(base, layers)
    if vocabulary is not None:
        tensors |= head_tensors(base, vocabulary)
    try:
        draft = assemble(base, _cut_config(base.config, layers), tensors, torch.float32)
        gap = _gap(base, draft, layers, vocabulary)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a class with unlike layers raises
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"{name} cannot run with only some of its layers ({reason}): choose another model to "
            "draft for"
        ) from error
    if not gap <= (_EXACT if base.dtype == torch.float32 else _ROUGH):
        raise ModelError(
            f"the layers of {name} depend on their position, so some of them alone are {gap:.1%} "
            "off: choose another model to draft for"
        )
    return draft


def mixed_precision(base: PreTrainedModel) -> AbstractContextManager[object]:
    """Compute products in the precision of `base` while its draft learns in float32."""
    if base.dtype == torch.float32:
        return nullcontext()
    return torch.autocast(base.device.type, base.dtype)


def check_text_only(base: PreTrainedModel) -> None:
    """Raise ModelError for a model that reads more than text."""
    if base.config.get_text_config() is not base.config:
        raise ModelError(
            f"{type(base).__name__} reads more than text: load its language model alone to train a "
            "draft for it"
        )


def check_layers(layers: Sequence[int], count: int) -> None:
    """Raise UsageError unless these are ascending layers of a model that has `count`."""
    if not layers or list(layers) != sorted(set(layers)):
        raise UsageError(
            f"layers must be ascending and all different, got {', '.join(map(str, layers))}"
        )
    if layers[0] < 0 or layers[-1] >= count:
        raise UsageError(
            f"the model has the layers 0 to {count - 1}, got {', '.join(map(str, layers))}"
        )


def _cut_config(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """Copy a configuration for fewer layers."""
    smaller = copy.deepcopy(config)
    for name in _BY_LAYER:
        by_layer = getattr(config, name, None)
        if isinstance(by_layer, list) and len(by_layer) == config.num_hidden_layers:
            setattr(smaller, name, [by_layer[layer] for layer in layers])
    smaller.num_hidden_layers = len(layers)
    smaller.name_or_path = ""  # or it would pass for the base
    return smaller


def _kept(base: PreTrainedModel, layers: Sequence[int]) -> dict[str, torch.Tensor]:
    """Copy the parameters that a draft owns, under their names there."""
    stack, kept = f"{layers_of(base)}.", {}
    for name, parameter in own_tensors(base, base).items():
        layer, _, part = name.removeprefix(stack).partition(".")
        if not name.startswith(stack):
            kept[name] = parameter.clone()
        elif int(layer) in layers:
            kept[f"{stack}{layers.index(int(layer))}.{part}"] = parameter.clone()
    return kept


@torch.no_grad()
def _gap(
    base: PreTrainedModel,
    draft: PreTrainedModel,
    layers: Sequence[int],
    vocabulary: torch.Tensor | None,
) -> float:
    """How far the draft's scores are from the base's with its other layers skipped, relative to
    the spread of all the base's: those of a few tokens may hardly differ."""
    size = base.config.vocab_size
    ids = torch.tensor([[(7 + 31 * step) % size for step in range(_TRIAL_TOKENS)]])
    ids = ids.to(base.get_input_embeddings().weight.device)
    stack: Any = base.get_submodule(layers_of(base))
    with narrow_windows(base.config), ExitStack() as hooks:
        for place, layer in enumerate(stack):
            if place not in layers:
                hooks.enter_context(layer.register_forward_hook(_hand_on, with_kwargs=True))
        expected = base(ids, use_cache=False).logits[0].float()
    with narrow_windows(draft.config), mixed_precision(base):
        found = draft(ids, use_cache=False).logits[0].float()
    _, spread = differences(expected, expected)
    if vocabulary is not None:
        found, expected = (each[:, vocabulary.to(each.device)] for each in (found, expected))
        spread = spread * (len(vocabulary) / size) ** 0.5  # as of that many tokens
    error, _ = differences(found, expected)
    return float((error / spread.clamp(min=1e-6)).max())


def _hand_on(
    layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """Forward hook: replace a layer's output with its input."""
    hidden = args[0] if args else kwargs["hidden_states"]
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden
