"""A low-bit copy of a target: the same model on quantised weights, with its own cache.

It drafts for the original model. Whatever is not rounded is shared and takes no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import ModelError
from paceline.kernels.blocks import rounded_size
from paceline.kernels.linear import FastLinear
from paceline.kernels.programs.rounding import Rounding
from paceline.kernels.programs.steps import Lowered
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.late_model import LateModel
from paceline.targets.one_call.compiled_pass import compiled
from paceline.targets.one_call.recording import UnfitError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BITS = {"int8": 8, "int4": 4}
"""Kinds of weights that a copy can have."""


def steps_of(target: CausalLMTarget) -> Lowered | None:
    """The compiled passes of the target; None for a model that cannot be compiled."""
    if target.steps is not None:
        return target.steps
    try:
        return compiled(target.model, target.late_model.facts.windows)
    except UnfitError:
        return None


class QuantisedCopy(CausalLMTarget):
    """A target that reuses the keys and values of what its origin has read: they are slightly
    better than its own would be, and prompts are not read twice. It does so while both have
    compiled passes and it keeps no states itself."""

    origin: CausalLMTarget | None = None

    @torch.inference_mode()
    def open(self, context: Sequence[int]) -> int:
        slot = super().open(context)
        own, origin = self._pass.compiled, self.origin
        if origin is not None and origin.steps and own and not self._pass.kept:
            try:
                own.use_cache(self._texts.cache)
                self._texts.adopt(slot, origin._texts)
            except BaseException:
                self.close(slot)
                raise
        return slot


def copied_target(target: CausalLMTarget, rounding: Rounding, weights: str) -> QuantisedCopy:
    """Make the target of `rounding`, which rounds `steps_of(target)`. weights: its name, one of
    `BITS`. The cache dtype is the target's."""
    late = target.late_model
    steps = rounding.program()
    saved = rounding.before - rounding.after
    facts = replace(late.facts, weight_bytes=late.facts.weight_bytes - saved, min_rows=1)
    done = replace(target.preparation, weights=weights, plain_copy="")
    dtype = target.describe().report["cache"]["dtype"]
    made = QuantisedCopy.stored(LateModel(facts, late.get), steps, done, cache_dtype=dtype)
    made.origin = target
    return made


def has_own_weights(model: PreTrainedModel) -> bool:
    """Whether a model's weights are still its parameters, none packed or moved by accelerate."""
    return not any(
        isinstance(each, FastLinear) or hasattr(each, "_hf_hook") for each in model.modules()
    )


def twin_of(model: PreTrainedModel) -> PreTrainedModel:
    """A second model on the same weights, which `prepare` may change without changing the first.
    model: with `has_own_weights`. Raises ModelError for one with attributes that have no copy."""
    known: dict[int, Any] = {id(each): each for each in model.buffers()}
    for each in model.parameters():
        known[id(each)] = nn.Parameter(each.detach(), requires_grad=False)
    try:
        return deepcopy(model, known)
    except Exception as error:  # hooks and attributes may be anything
        raise ModelError(
            f"this model cannot be copied ({error}): remove what was added to it, or use another "
            "method"
        ) from error


def rounded_bytes(model: PreTrainedModel, weights: str) -> int:
    """Approximate bytes of the rounded linear layers of a model that `has_own_weights`, plus the
    largest as floats."""
    layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
    sizes = [rounded_size(each.out_features, each.in_features, BITS[weights]) for each in layers]
    return sum(sizes) + 4 * max((each.weight.numel() for each in layers), default=0)
