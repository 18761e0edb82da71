"""A short text that shows whether preparing a model has changed its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.errors import ModelError
from paceline.targets.support import differences
from paceline.targets.weights import is_rough

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["compare", "trial"]

# Largest error of the prepared model's scores in a trial pass, relative to their spread: for float
# weights what rounding explains; for quantised ones only a guard against blunders.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 3e-2}
_QUANTISED_TOLERANCE = 0.9
_TRIAL_TOKENS = 12


def trial(model: PreTrainedModel) -> torch.Tensor:
    """Scores [tokens, vocabulary] of a short text."""
    size = model.config.get_text_config().vocab_size
    ids = [(7 + 31 * step) % size for step in range(_TRIAL_TOKENS)]
    logits: torch.Tensor = model(torch.tensor([ids], device=model.device), use_cache=False).logits
    return logits[0].float()


def compare(model: PreTrainedModel, before: torch.Tensor, weights: str, quantised: bool) -> None:
    """Raises ModelError if a prepared model does not reproduce `before`, the original's trial.

    weights: what it runs on, for the message. quantised: whether these have few bits.
    """
    found, spread = differences(trial(model), before)
    error = float(found.norm() / spread.norm().clamp(min=1e-6))
    dtype = torch.bfloat16 if is_rough(model) else model.dtype
    limit = _QUANTISED_TOLERANCE if quantised else _TOLERANCE.get(dtype, 1e-3)
    if not error <= limit:
        raise ModelError(
            f"the scores of {type(model).__name__} differ by {error:.1%} with {weights} weights: "
            'load it with weights="native"'
        )
