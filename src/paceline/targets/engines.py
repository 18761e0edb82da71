"""Engines: ways to run a loaded model behind the `Target` contract, as one table.

To add an engine, add an entry to `ENGINES`; `paceline.testing.check_target` checks that it keeps
the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.errors import UsageError
from paceline.protocols import Target
from paceline.targets.cache_dtypes import FLOAT32, check_cache_dtype
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.preparation import Preparation
from paceline.targets.prepare import AUTO, check_weights, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["DEFAULT_ENGINE", "ENGINES", "Engine", "check_choices", "check_engine", "open_target"]

DEFAULT_ENGINE = "compiled"


@dataclass(frozen=True)
class Engine:
    """A way to run models.

    about: a short description. open: maps a model, its preparation, whether to check first that it
    can run this way, and the cache dtype to a target. Raises ModelError, naming the reason, if it
    cannot.
    """

    about: str
    open: Callable[[PreTrainedModel, Preparation, bool, str], Target]


ENGINES = {
    DEFAULT_ENGINE: Engine(
        "compiled passes on a CPU, few operators on a GPU, if the model can be recorded; otherwise like "
        "transformers",
        lambda model, done, check, cache: CausalLMTarget(
            model, preparation=done, check=check, cache_dtype=cache
        ),
    ),
    "transformers": Engine(
        "the model's own forward in transformers, on any device",
        lambda model, done, check, cache: CausalLMTarget(
            model, preparation=done, check=check, compiled=False, cache_dtype=cache
        ),
    ),
    "transformers-eager": Engine(
        "like transformers, without CUDA graphs on a GPU",
        lambda model, done, check, cache: CausalLMTarget(
            model,
            preparation=done,
            check=check,
            static=False,
            compiled=False,
            cache_dtype=cache,
        ),
    ),
}


def check_engine(name: str) -> None:
    """Raises UsageError for a name that is not in `ENGINES`."""
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name!r}: use one of {', '.join(ENGINES)}")


def check_choices(engine: str, weights: str, cache_dtype: str) -> None:
    """Raises UsageError for an unknown name."""
    check_weights(weights)
    check_engine(engine)
    check_cache_dtype(cache_dtype)


def open_target(
    model: PreTrainedModel,
    engine: str = DEFAULT_ENGINE,
    *,
    weights: str = AUTO,
    exact: bool = True,
    check: bool = True,
    cache_dtype: str = FLOAT32,
) -> Target:
    """Put `model` behind the `Target` contract; changes it in place unless `weights` is "native".

    weights, exact: see `prepare`. check: try a small tree first, see `Engine`.
    cache_dtype: of keys and values, one of `CACHE_DTYPES`.

    Raises UsageError for an unknown engine, weights or cache dtype, ModelError for a model that
    cannot run this way.
    """
    check_choices(engine, weights, cache_dtype)
    return ENGINES[engine].open(model, prepare(model, weights, exact=exact), check, cache_dtype)
