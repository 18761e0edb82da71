"""Engines: ways to run a loaded model behind the `Target` contract, as one table.

An engine is added by one line in `ENGINES`; `paceline.testing.check_target` says whether it keeps
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

    about: in a few words. open: a model, what was done to it, whether to check first that it can be
    run this way, and what the cache is held in -> the target. It raises ModelError, naming the reason, where it cannot.
    """

    about: str
    open: Callable[[PreTrainedModel, Preparation, bool, str], Target]


ENGINES = {
    DEFAULT_ENGINE: Engine(
        "a pass in one call on a CPU, where the model is fit for that; else as transformers",
        lambda model, done, check, cache: CausalLMTarget(
            model, preparation=done, check=check, cache_dtype=cache
        ),
    ),
    "transformers": Engine(
        "the model's own forward of transformers, on any device",
        lambda model, done, check, cache: CausalLMTarget(
            model, preparation=done, check=check, compiled=False, cache_dtype=cache
        ),
    ),
    "transformers-eager": Engine(
        "the same, on a GPU without CUDA graphs",
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
        raise UsageError(f"unknown engine {name!r}; there are: {', '.join(ENGINES)}")


def check_choices(engine: str, weights: str, cache_dtype: str) -> None:
    """Raises UsageError for a name that there is not."""
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
    """`model` behind the `Target` contract; it is changed in place unless `weights` is "native".

    weights, exact: see `prepare`. check: try a small tree first, see `Engine`.
    cache_dtype: what keys and values are held in, one of `CACHE_DTYPES`.

    Raises UsageError for an unknown engine, kind of weights or cache, ModelError for a model that cannot
    be run this way.
    """
    check_choices(engine, weights, cache_dtype)
    return ENGINES[engine].open(model, prepare(model, weights, exact=exact), check, cache_dtype)
