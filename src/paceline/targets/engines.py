"""Engines: ways to run a loaded model behind the `Target` contract, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.errors import check_known
from paceline.targets.cache_dtypes import CACHE_DTYPES, FLOAT32
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.prepare import AUTO, check_weights, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_ENGINE = "compiled"

ENGINES: dict[str, dict[str, bool]] = {
    DEFAULT_ENGINE: {},
    "transformers": {"compiled": False},
    "transformers-eager": {"static": False, "compiled": False},
}
"""Arguments of `CausalLMTarget`. compiled: compiled passes on a CPU, few operators on a GPU, if the
model can be recorded; otherwise like transformers: the model's own forward, on any device.
transformers-eager: the same without CUDA graphs on a GPU."""


def check_choices(engine: str, weights: str, cache_dtype: str) -> None:
    """Raises UsageError for an unknown name."""
    check_weights(weights)
    check_known("engine", ENGINES, engine)
    check_known("cache dtype", CACHE_DTYPES, cache_dtype)


def open_target(
    model: PreTrainedModel,
    engine: str = DEFAULT_ENGINE,
    *,
    weights: str = AUTO,
    exact: bool = True,
    check: bool = True,
    cache_dtype: str = FLOAT32,
) -> CausalLMTarget:
    """Put `model` behind the `Target` contract; changes it in place unless `weights` is "native".

    weights, exact: see `prepare`. check: first check that it can run this way, see
    `CausalLMTarget`. cache_dtype: of keys and values, one of `CACHE_DTYPES`.

    Raises UsageError for an unknown engine, weights or cache dtype, ModelError for a model that
    cannot run this way.
    """
    check_choices(engine, weights, cache_dtype)
    return CausalLMTarget(
        model,
        preparation=prepare(model, weights, exact=exact),
        check=check,
        cache_dtype=cache_dtype,
        **ENGINES[engine],
    )
