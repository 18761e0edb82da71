"""Inside transformers: `model.generate(**inputs, custom_generate=Pace())`.

transformers prepares everything (generation config, processors, criteria), passes it to the
callable and returns its result unchanged. Three arguments of `generate` never reach a callable:
`streamer`, `tokenizer` and `stop_strings`. `Pace` takes the streamer itself, and `accelerate` wraps
the model so that all three work as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from paceline.defaults import DEFAULT_METHOD
from paceline.drafters import check_method, make_drafter, needs_host
from paceline.errors import UsageError
from paceline.integrations.known_model import KnownModel
from paceline.integrations.requests import check_request, packed, sampler_of, stopping_of
from paceline.integrations.rows import PromptRow, split_rows
from paceline.kernels.attention import attending_by_text
from paceline.loop import Generation, decode
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Target
from paceline.stats import Stats
from paceline.targets.engines import open_target
from paceline.targets.preparation import NATIVE
from paceline.targets.prepare import prepare
from paceline.targets.support import check_supported

__all__ = ["Accelerated", "Pace", "accelerate"]


class Pace:
    """A decoding method for transformers' `custom_generate`.

    method, settings: as everywhere, e.g. Pace("anpd", n=5, k=7) or Pace("anpd:n=5,k=7"). The draft
    model of Pace("speculative", draft=…) is a loaded model or a name; the caller ensures that it
    has the model's tokenizer.
    seed: of sampling; None takes it from torch's global generator, so `set_seed` works.
    streamer: receives prompt and tokens like any streamer of transformers (one text at a time).
    budget: most nodes a drafter may propose per round; None plans the number each round from pass
    costs and acceptance rates. If no cost curve is stored, the first call with a model measures a
    rough one.

    After a call `stats` holds the statistics of each row. Greedy output is identical to that of
    transformers; sampling draws from the same distribution with our own noise.
    """

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        *,
        seed: int | None = None,
        streamer: BaseStreamer | None = None,
        budget: int | None = None,
        **settings: Any,
    ) -> None:
        self.stats: list[Stats] = []
        self.seed = seed
        self.streamer = streamer
        self.budget = budget
        check_method(method, **settings)
        self._make = partial(make_drafter, method, **settings)
        # Kept between calls, so that a drafter can keep learning from one conversation. One that is
        # trained for a model starts afresh with every call, which has a new target.
        self._drafter = None if needs_host(method) else self._make()
        self._plans = method != "plain" and budget is None
        self._checked: set[tuple[type[PreTrainedModel], str]] = set()
        self._known: KnownModel | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        generation_config: GenerationConfig | None = None,
        references: Sequence[Sequence[int]] = (),
        **model_kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """Called by `generate`; input_ids [batch, length] -> sequences [batch, length + new].

        references: token ids of texts that the outputs may resemble; pass them to `generate`.

        Raises UsageError for unsupported requests: beams, a cache to continue from, scores or
        attentions in the output, inputs other than token ids, several texts with a streamer.
        """
        config = generation_config or model.generation_config
        check_request(model, config, model_kwargs)
        rows = split_rows(input_ids, model_kwargs)
        if self.streamer is not None and len(rows) > 1:
            raise UsageError(
                "a streamer shows only one text: leave it out, or generate texts one by one"
            )
        # A batch attends text by text, in the caller's model too.
        with attending_by_text(model) if len(rows) > 1 else nullcontext():
            if self.streamer is not None:
                self.streamer.put(input_ids.cpu())
            generations = self._generate(
                model, rows, config, logits_processor or [], stopping_criteria or [], references
            )
            if self.streamer is not None:
                self.streamer.end()
        return packed(input_ids, generations, config)

    def _generate(
        self,
        model: PreTrainedModel,
        rows: Sequence[PromptRow],
        config: GenerationConfig,
        processors: Sequence[Callable[..., Any]],
        criteria: Sequence[Callable[..., Any]],
        references: Sequence[Sequence[int]],
    ) -> list[Generation]:
        kind = type(model), model.config._attn_implementation
        target = open_target(model, weights=NATIVE, check=kind not in self._checked)
        self._checked.add(kind)
        known = self._meet(model, target)
        seed = self.seed
        if seed is None and config.do_sample:
            seed = int(torch.randint(2**62, (1,)))
        drafters = self._drafters(known, model, target, len(rows))
        generations = [
            Generation(
                row.tokens,
                drafter,
                stopping_of(row, config, criteria),
                sampler_of(row, config, processors, seed or 0),
                references,
            )
            for row, drafter in zip(rows, drafters)
        ]
        sizing = known.planner if self.budget is None else self.budget
        self._play(target, generations, sizing)
        return generations

    def _meet(self, model: PreTrainedModel, target: Target) -> KnownModel:
        """What is known about the model; starts afresh if it is another one or has moved."""
        if self._known is None or not self._known.fits(model):
            self._known = KnownModel.of(model, target, measure=self._plans)
        return self._known

    def _drafters(
        self, known: KnownModel, model: PreTrainedModel, target: Target, count: int
    ) -> list[Drafter]:
        """One per text."""
        if self._drafter is None:
            host = known.host(model, target)
            return [self._make(host=host) for _ in range(count)]
        return [self._drafter] if count == 1 else [self._make() for _ in range(count)]

    def _play(
        self, target: Target, generations: Sequence[Generation], sizing: int | TreePlanner
    ) -> None:
        self.stats = [Stats() for _ in generations]
        for round in decode(target, generations, sizing):
            self.stats[round.key].add(round)
            if self.streamer is not None:
                for token in round.path.tokens:
                    self.streamer.put(torch.tensor([token]))


class Accelerated:
    """A model whose `generate` is accelerated; everything else is the model's own.

    Made by `accelerate`.
    """

    def __init__(self, model: PreTrainedModel, pace: Pace) -> None:
        self.model = model
        self.pace = pace

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        *,
        streamer: BaseStreamer | None = None,
        tokenizer: Any = None,
        stop_strings: str | list[str] | None = None,
        stopping_criteria: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """Generate; arguments and result are those of transformers' `generate`.

        Raises UsageError for unsupported requests, see `Pace`.
        """
        criteria = StoppingCriteriaList(stopping_criteria or ())
        if stop_strings is not None:
            if tokenizer is None:
                raise UsageError("stop_strings need the tokenizer: pass tokenizer=… as well")
            criteria.append(StopStringCriteria(tokenizer, stop_strings))
        held, self.pace.streamer = self.pace.streamer, streamer or self.pace.streamer
        try:
            return self.model.generate(
                inputs, stopping_criteria=criteria, custom_generate=self.pace, **kwargs
            )
        finally:
            self.pace.streamer = held

    @property
    def stats(self) -> list[Stats]:
        """Statistics of the last call, per row."""
        return self.pace.stats

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


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

    Raises ModelError if the model cannot be driven, UsageError for an unknown method or setting.
    """
    check_supported(model)
    pace = Pace(method, **settings)  # a wrong setting must not cost the model its weights
    prepare(model, weights)
    return Accelerated(model, pace)
