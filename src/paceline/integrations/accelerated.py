"""`accelerate`: a transformers model whose `generate` is paceline's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial, wraps
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteriaList, StopStringCriteria
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from paceline.defaults import DEFAULT_METHOD
from paceline.errors import UsageError
from paceline.integrations.requests import HEALING
from paceline.integrations.transformers import Pace
from paceline.stats import Stats
from paceline.targets.preparation import NATIVE
from paceline.targets.prepare import prepare
from paceline.targets.support import check_supported

# Options that `generate` drops, or that let it drop us, before a decoding method hears of them.
_LOST: dict[str, tuple[Callable[[Any], bool], str]] = {
    "assistant_model": (
        lambda given: given is not None,
        'accelerate the model with it: accelerate(model, "speculative", draft=…)',
    ),
    "cache_implementation": (
        lambda given: given == "paged",
        "leave it out, or call generate of the model itself",
    ),
    "synced_gpus": (bool, "call generate of the model itself"),
}


class Accelerated:
    """A model whose `generate` is accelerated; everything else is the model's own, attributes that
    are set included. Methods that return the model, like `to`, return this wrapper; keep the model
    for its own `generate`.

    Made by `accelerate`.
    """

    def __init__(self, model: PreTrainedModel, pace: Pace) -> None:
        self._wrapped = model
        self.pace = pace

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[Any] | None = None,
        stopping_criteria: Sequence[Any] | None = None,
        *,
        streamer: BaseStreamer | None = None,
        tokenizer: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """Generate; arguments and result are those of transformers' `generate`.

        Raises UsageError for unsupported requests, see `Pace`, for stop strings without a
        tokenizer, for `token_healing`, an assistant model, a paged cache and synchronised GPUs, and
        for another `custom_generate`.
        """
        if kwargs.pop("custom_generate", None) is not None:
            raise UsageError(
                "an accelerated model generates in its own way: leave out custom_generate, or call "
                "generate of the model itself"
            )
        for name, (lost, advice) in _LOST.items():
            if lost(kwargs.get(name)):
                raise UsageError(f"{name} is not supported here: {advice}")
        # For healing, `generate` would want the tokenizer, which it drops.
        if self._chosen("token_healing", generation_config, kwargs):
            raise UsageError(HEALING)
        criteria = StoppingCriteriaList(stopping_criteria or ())
        strings = self._chosen("stop_strings", generation_config, kwargs)
        # `generate` must find none, for the same reason.
        kwargs.pop("stop_strings", None)
        if self._wrapped.generation_config.stop_strings is not None:
            kwargs["stop_strings"] = None
        if generation_config is not None and generation_config.stop_strings is not None:
            generation_config = copy(generation_config)
            generation_config.stop_strings = None
        if strings is not None:
            if tokenizer is None:
                raise UsageError("stop_strings need the tokenizer: pass tokenizer=… as well")
            criteria.append(StopStringCriteria(tokenizer, strings))
        generate = self._wrapped.generate
        if getattr(generate, "__self__", None) is self:  # the caller has put this method there
            generate = partial(type(self._wrapped).generate, self._wrapped)
        return generate(
            inputs,
            generation_config,
            logits_processor,
            criteria,
            custom_generate=partial(self.pace, streamer=streamer),
            **kwargs,
        )

    def _chosen(self, name: str, config: GenerationConfig | None, options: dict[str, Any]) -> Any:
        """A setting: as an option, else of the configuration, else of the model."""
        chosen = getattr(config, name, None)
        if chosen is None:
            chosen = getattr(self._wrapped.generation_config, name)
        return options.get(name, chosen)

    @property
    def stats(self) -> list[Stats]:
        """Statistics of the last call, per row."""
        return self.pace.stats

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A forward pass of the model."""
        return self._wrapped(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` look for methods of their own before there is a model.
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._wrapped, name)
        own = getattr(found, "__wrapped__", found)  # accelerate wraps `to` of a spread model
        if all(getattr(each, "__self__", None) is not self._wrapped for each in (found, own)):
            return found

        @wraps(found)
        def called(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            return self if result is self._wrapped else result

        return called

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in ("_wrapped", "pace") or hasattr(type(self), name)
        object.__setattr__(self if own else self._wrapped, name, value)


def accelerate(
    model: PreTrainedModel, method: str = DEFAULT_METHOD, *, weights: str = NATIVE, **settings: Any
) -> Accelerated:
    """Wrap a loaded model so that its `generate` is accelerated.

        fast = paceline.accelerate(model)
        fast.generate(**tokenizer("Hello", return_tensors="pt"), max_new_tokens=100)
        paceline.accelerate(model, "speculative", draft=smaller_model)

    weights: how linear layers store their weights. "native" leaves the model unchanged; anything
    else changes it in place, irreversibly: see docs/speed.md, and save the model first.
    settings: of the method; `seed` and `budget` go to `Pace`.

    Raises ModelError if the model cannot be driven, UsageError for what is no such model, and for
    an unknown method or setting.
    """
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        otherwise = "paceline.load takes a name"
        if hasattr(model, "generate"):  # what PEFT and torch.compile wrap around one
            otherwise = f"call generate of the {kind} with custom_generate=paceline.Pace()"
        raise UsageError(
            f"accelerate takes a model that transformers has loaded, not {kind}: {otherwise}"
        )
    if not hasattr(model, "generate"):
        raise UsageError(f"{kind} cannot generate: load it with AutoModelForCausalLM")
    check_supported(model)
    pace = Pace(method, **settings)  # a wrong setting must not cost the model its weights
    prepare(model, weights)
    return Accelerated(model, pace)
