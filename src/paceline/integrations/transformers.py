"""Inside transformers: `model.generate(**inputs, custom_generate=Pace())`.

transformers prepares everything (generation config, processors, criteria), passes it to the
callable and returns its result unchanged. Three arguments of `generate` never reach a callable:
`streamer`, `tokenizer` and `stop_strings`. `Pace` takes the streamer itself; with `accelerate`, see
`paceline.integrations.accelerated`, all three work as usual.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from paceline.defaults import DEFAULT_METHOD
from paceline.drafters import check_method, make_drafter, method_named
from paceline.drafters.settings import parse_method
from paceline.errors import UsageError
from paceline.integrations.known_model import KnownModel, hooks_of
from paceline.integrations.requests import check_request, packed, sampler_of, stopping_of
from paceline.integrations.rows import for_each_row, split_rows
from paceline.kernels.attention import GROUPED, attending_by_text
from paceline.kernels.autocast import autocast_dtype
from paceline.loop import Generation, decode
from paceline.messages import as_references
from paceline.models.fingerprint import form_of
from paceline.options import check_budget, whole_number
from paceline.protocols import Drafter, Target
from paceline.records import Round
from paceline.stats import Stats
from paceline.targets.engines import open_target
from paceline.targets.preparation import NATIVE

_opening = Lock()
_MOST_FORMS = 16  # remembered for a model
_checked: WeakKeyDictionary[PreTrainedModel, set[tuple[object, ...]]] = WeakKeyDictionary()
"""Forms in which a model was found to run. A check narrows its windows for a moment, which other
threads must not meet in every call."""


class Pace:
    """A decoding method for transformers' `custom_generate`.

    method, settings: as everywhere, e.g. Pace("anpd", n=5, k=7) or Pace("anpd:n=5,k=7"). The draft
    model of Pace("speculative", draft=…) is a loaded model or a name; the caller ensures that it
    has the model's tokenizer.
    seed: of sampling; None takes it from torch's global generator, so `set_seed` works.
    streamer: receives prompt and tokens like any streamer of transformers (one text at a time).
    budget: most nodes a drafter may propose per round; None plans the number each round from pass
    costs and acceptance rates. If no cost curve is stored, the first call with a model measures a
    rough one. It also opens what the method has for the model. `auto` makes no copy of it unless
    asked, as with "auto:sources=anpd+speculative:draft=self".

    After a call `stats` holds the statistics of each row. Greedy output is identical to that of
    transformers; sampling draws from the same distribution with our own noise.

    Threads may share one; `stats` are then those of the call that ended last. A copy starts afresh.
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
        self.seed = None if seed is None else whole_number("seed", seed)
        self.streamer = streamer
        self.budget = None if budget is None else whole_number("budget", budget)
        check_budget(self.budget)
        check_method(method, **settings)
        self._make = partial(make_drafter, method, **settings)
        # Kept between calls, so that a drafter can keep learning from one conversation. One that can
        # use a host starts afresh with every call, which has a new target; `KnownModel` keeps what
        # it has learned.
        self._alone = method_named(parse_method(method)[0]).build_for is None
        if self._alone:
            self._make()  # so that its errors come early
        self._plans = method != "plain" and budget is None
        self._known: KnownModel | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        generation_config: GenerationConfig | None = None,
        references: Sequence[Sequence[int]] = (),
        streamer: BaseStreamer | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """Called by `generate`; input_ids [batch, length] -> sequences [batch, length + new].

        references: token ids of texts that the outputs may resemble; pass them to `generate`.
        streamer: of this call; `generate` never passes one on, `accelerate` does.

        Raises UsageError for unsupported requests: beams, contrastive search, DoLa, a cache of the
        caller or a quantised one, scores or attentions in the output, inputs other than token ids,
        several texts with a streamer, processors or criteria that a batch needs copies of but
        cannot copy.
        """
        config = generation_config or model.generation_config
        check_request(model, config, model_kwargs)
        references = _token_references(references)
        rows = split_rows(input_ids, model_kwargs)
        streamer = self.streamer if streamer is None else streamer
        if streamer is not None and len(rows) > 1:
            raise UsageError(
                "a streamer shows only one text: leave it out, or generate texts one by one"
            )
        rules = for_each_row(rows, model, logits_processor or [], stopping_criteria or [])
        with self._opened(model, several=len(rows) > 1) as (target, known):
            if streamer is not None:
                streamer.put(input_ids.cpu())
            seed = self.seed
            if seed is None and config.do_sample:
                seed = int(torch.randint(2**62, (1,), device="cpu"))
            with self._drafters(known, target, len(rows)) as drafters:
                generations = [
                    Generation(
                        row.tokens,
                        drafter,
                        stopping_of(row, criteria),
                        sampler_of(row, config, processors, seed or 0),
                        references,
                    )
                    for row, (processors, criteria), drafter in zip(rows, rules, drafters)
                ]
                self._play(known, target, generations, streamer)
            if streamer is not None:
                streamer.end()
        return packed(input_ids, generations, config)

    @contextmanager
    def _opened(self, model: PreTrainedModel, several: bool) -> Iterator[tuple[Target, KnownModel]]:
        """The target of one call, and what is known about the model. Several texts attend one by
        one, in the caller's model too."""
        with ExitStack() as borrowed:
            # A target keeps to the attention that it was opened with, so none is opened while
            # another thread switches it, nor on a switched model that could be switched back.
            # And the first calls of several threads must come to know the model together.
            with _opening:
                if several or model.config._attn_implementation == GROUPED:
                    borrowed.enter_context(attending_by_text(model))
                own = model.config._attn_implementation, autocast_dtype(model)
                form = (*own, *form_of(model), hooks_of(model))
                checked = _checked.setdefault(model, set())
                target = open_target(model, weights=NATIVE, check=form not in checked)
                if target.runs_as_opened:  # otherwise only another check finds out how it runs
                    if len(checked) == _MOST_FORMS:  # hooks that come and go make a form each
                        checked.clear()
                    checked.add(form)
                known = self._known
                if known is None or not known.fits(model):  # another model, or it has changed
                    known = self._known = KnownModel(model, target, self._plans)
            try:
                yield target, known
            finally:
                target.release()  # parts that are kept may refer to it

    @contextmanager
    def _drafters(self, known: KnownModel, target: Target, count: int) -> Iterator[list[Drafter]]:
        """One per text, for this call alone."""

        def hosted() -> list[Drafter]:
            host = known.host(target)
            return [self._make(host=host) for _ in range(count)]

        if not self._alone:
            yield known.turns.during(hosted)
        elif count > 1:
            yield [self._make() for _ in range(count)]
        else:
            with known.lend(self._make) as drafter:
                yield [drafter]

    def _play(
        self,
        known: KnownModel,
        target: Target,
        generations: Sequence[Generation],
        streamer: BaseStreamer | None,
    ) -> None:
        stats = [Stats() for _ in generations]
        sizing = known.planner if self.budget is None else self.budget
        rounds = cast("Generator[Round, None, None]", decode(target, generations, sizing))

        def next_round() -> Round | None:
            return next(rounds, None)

        try:
            while (round := known.turns.during(next_round)) is not None:
                failed = next((text.error for text in generations if text.error), None)
                if failed is not None:  # no text is returned, so the others need not end
                    raise failed
                stats[round.key].add(round)
                stats[round.key].reused = generations[round.key].reused
                if streamer is not None:
                    for token in round.path.tokens:
                        streamer.put(torch.tensor([token], device="cpu"))
        finally:
            # A streamer may have raised; drafters and targets are used in turns only.
            known.turns.during(rounds.close)
            self.stats = stats

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": None}  # it refers to the model weakly


def _token_references(references: Sequence[Sequence[int]]) -> list[list[int]]:
    """References as lists. Raises UsageError for what is not token ids."""
    found: list[list[int]] = []
    for each in as_references(references):
        if isinstance(each, str):
            raise UsageError("a reference of generate is token ids: encode it with the tokenizer")
        found.append(each)
    return found
