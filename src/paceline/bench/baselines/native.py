"""Baselines of transformers: its own `generate`, on the model as it loads it, with passes timed."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from paceline.bench.trial import Contender, Request, Trial
from paceline.drafters.settings import at_least
from paceline.errors import UsageError
from paceline.models import load_causal_lm
from paceline.stats import Stats

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(eq=False)
class Baseline(Contender):
    """A contender that is a dataclass of its settings, read before its model is loaded."""

    loaded = 0

    def check(self, gguf: Path | None) -> None:
        """Raise UsageError if it cannot run because software or files are missing."""

    @abstractmethod
    def open(self, native: Native) -> None:
        """Prepare to run."""


@dataclass
class Native:
    """The model as transformers loads it, next to paceline's copy.

    source: alias, folder, GGUF file or hub id; eos_ids: tokens that end a text; gguf: a file of
    the same model, for software that reads no other format. passes: seconds and tokens scored of
    each pass of the model.
    """

    source: str
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    eos_ids: Sequence[int] = ()
    gguf: Path | None = None
    passes: list[tuple[float, int]] = field(init=False, default_factory=list)

    @cached_property
    def model(self) -> PreTrainedModel:
        """Loaded on first use and unchanged, except that its passes are watched."""
        from transformers import GenerationConfig

        model = self.load(self.source)
        # Each request states its settings. The model's own defaults, such as a repetition penalty,
        # would make a different text than paceline's.
        model.generation_config = GenerationConfig()
        _time_passes(model, self.passes)
        return model

    def load(self, source: str) -> PreTrainedModel:
        """A model, placed like this one."""
        return load_causal_lm(source, device=self.device, dtype=self.dtype).model


def _time_passes(model: PreTrainedModel, passes: list[tuple[float, int]]) -> None:
    """Record every pass of `model` from now on."""
    began = 0.0

    def begin(*_: Any) -> None:
        nonlocal began
        began = perf_counter()

    def end(_: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if output.logits.is_cuda:
            torch.cuda.synchronize()
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        passes.append((perf_counter() - began, int(ids.shape[1])))

    model.register_forward_pre_hook(begin, with_kwargs=True)
    model.register_forward_hook(end, with_kwargs=True)


def pass_stats(passes: Sequence[tuple[float, int]], prompt_tokens: int, tokens: int) -> Stats:
    """Tokens gained per round are not visible from outside, so their histogram stays empty.

    passes: seconds and tokens scored of each; the first reads the prompt. tokens: generated.
    """
    (first, read), *rest = passes
    guesses = [read - prompt_tokens, *(scored - 1 for _, scored in rest)]
    return Stats(
        rounds=len(passes),
        tokens=tokens,
        drafted=sum(guesses),
        accepted=max(0, tokens - len(passes)) if sum(guesses) else 0,
        depth_histogram=Counter(guesses),
        prefill_seconds=first,
        target_seconds=sum(seconds for seconds, _ in rest),
    )


@dataclass(eq=False)
class TransformersGenerate(Baseline):
    """Plain decoding by transformers."""

    name = "transformers"

    def open(self, native: Native) -> None:
        """Load the model."""
        self._native = native
        _ = native.model

    @torch.inference_mode()
    def generate(self, request: Request) -> Trial:
        """Generate once."""
        native, options = self._native, request.options
        model, passes, sampled = native.model, native.passes, options.temperature > 0
        ids = torch.tensor([list(request.ids)], device=model.device)
        settings: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "do_sample": sampled}
        settings |= self._settings()
        if sampled:
            settings |= {
                name: value
                for name in ("temperature", "top_p", "min_p")
                if (value := getattr(options, name)) is not None
            }
            settings["top_k"] = options.top_k or 0  # transformers' default is 50
            torch.manual_seed(options.seed)
        if native.eos_ids and not options.ignore_eos:
            # Nothing is padded, but an assistant would skip a pad token in the prompt unless it
            # also ends a text.
            settings |= {"eos_token_id": list(native.eos_ids), "pad_token_id": native.eos_ids[0]}
        passes.clear()
        began = perf_counter()
        output = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        tokens: list[int] = output[0, ids.shape[1] :].tolist()
        seconds = perf_counter() - began
        return Trial(tokens, seconds, pass_stats(passes, len(request.ids), len(tokens)))

    def _settings(self) -> dict[str, Any]:
        """Arguments of `generate` besides those that requests bring."""
        return {}


@dataclass(eq=False)
class TransformersLookup(TransformersGenerate):
    """Prompt lookup by transformers (`prompt_lookup_num_tokens`).

    k: most tokens copied per round, >= 1.
    """

    name = "transformers-lookup"
    k: int = 10

    def __post_init__(self) -> None:
        at_least(1, k=self.k)

    def _settings(self) -> dict[str, Any]:
        return {"prompt_lookup_num_tokens": self.k}


@dataclass(eq=False)
class TransformersAssisted(TransformersGenerate):
    """Assisted generation by transformers.

    draft: a smaller model with the same tokenizer: alias, folder, GGUF file or hub id.
    """

    name = "transformers-assisted"
    draft: str = ""

    def check(self, gguf: Path | None) -> None:
        """Require a draft model."""
        if not self.draft:
            raise UsageError(
                "transformers-assisted needs a draft model: transformers-assisted:draft=NAME"
            )

    def open(self, native: Native) -> None:
        """Load both models. Raises UsageError if their vocabularies differ in size."""
        self._assistant = native.load(self.draft)
        super().open(native)
        own, other = (
            each.config.get_text_config().vocab_size for each in (native.model, self._assistant)
        )
        if own != other:
            raise UsageError(
                f"{self.draft} has a vocabulary of {other} tokens and {native.source} of {own}: "
                "assisted generation needs a draft model with the same tokenizer"
            )

    def _settings(self) -> dict[str, Any]:
        return {"assistant_model": self._assistant}
