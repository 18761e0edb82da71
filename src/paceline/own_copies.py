"""`draft=self`: a quantised copy of a model, to draft for it, made from the weights in memory or,
if they cannot be read, from the model's files."""

from __future__ import annotations

from paceline.errors import ModelError, UsageError
from paceline.kernels.native.calls import unavailable
from paceline.kernels.programs.rounding import Rounding
from paceline.models import ProgressCallback, load_causal_lm
from paceline.models.memory import check_room
from paceline.protocols import Target
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.engines import open_target
from paceline.targets.quantised_copy import (
    BITS,
    copied_target,
    has_own_weights,
    rounded_bytes,
    steps_of,
    twin_of,
)

_SMALLER = 0.8
"""Largest share of the model's bytes per pass that a copy may read; more could hardly be faster."""


def open_copy(
    target: Target, weights: str, fingerprint: str, progress: ProgressCallback
) -> CausalLMTarget:
    """A target on a copy of the target's model.

    weights: of the copy, int4 or int8. fingerprint: of the model; its files, if read, must match.

    Raises UsageError if there can be no such copy, or none that is smaller; ModelError without
    enough memory for it, or weights to make it from.
    """
    if not isinstance(target, CausalLMTarget):
        raise UsageError(f"a {type(target).__name__} cannot be copied: name a draft model")
    if weights not in BITS:
        raise UsageError(f"a copy must have weights {' or '.join(BITS)}, not {weights!r}")
    if target.late_model.facts.device != "cpu" or unavailable():
        why = unavailable() or f"it is on {target.late_model.facts.device}, not on a CPU"
        raise UsageError(f"this model cannot run with {weights} weights here: {why}")
    what, otherwise = f"a copy of this model with {weights} weights", "use another method"
    steps = steps_of(target)
    if steps is not None:
        rounding = Rounding(steps, BITS[weights])
        if rounding.after > _SMALLER * rounding.before:
            copied, own = (size / 1e6 for size in (rounding.after, rounding.before))
            raise UsageError(
                f"{what} would read {copied:.0f} MB in each pass, and the model itself reads "
                f"{own:.0f} MB, so it could not draft faster: load the model with "
                "weights='packed' (--weights packed), or name another draft model"
            )
        check_room(what, rounding.needed, otherwise)
        return copied_target(target, rounding, weights)
    if has_own_weights(target.model):
        check_room(what, rounded_bytes(target.model, weights), otherwise)
        return open_target(twin_of(target.model), weights=weights, exact=False)
    return _from_files(target, weights, fingerprint, progress)


def _from_files(
    target: CausalLMTarget, weights: str, fingerprint: str, progress: ProgressCallback
) -> CausalLMTarget:
    """A copy made from the model's files, for weights in memory that can no longer be read."""
    name = target.model.name_or_path
    refusal = "the weights of this model are packed and cannot be copied, and"
    if not name:
        raise ModelError(f"{refusal} it has no files: accelerate it with weights='native'")
    dtype = target.preparation.halves or target.late_model.facts.dtype
    try:
        loaded = load_causal_lm(name, device="cpu", dtype=dtype, progress=progress)
    except ModelError as error:
        raise ModelError(f"{refusal} its files cannot be read: {error}") from error
    if fingerprint and loaded.fingerprint != fingerprint:
        raise ModelError(f"{refusal} {name} now contains another model: load it again")
    return open_target(loaded.model, weights=weights, exact=False)
