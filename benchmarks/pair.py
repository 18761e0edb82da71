"""One model twice, untouched for transformers and prepared for paceline, and timers for both.

Both copies live in one process, so that they share threads, memory and the state of the machine,
and runs can take turns.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

import paceline
from paceline.bench.comparison import next_scores
from paceline.drafters import make_drafter
from paceline.loop import Generation, decode
from paceline.models import load_causal_lm
from paceline.protocols import Planner
from paceline.records import Path as Accepted
from paceline.session import Session
from paceline.stats import Stats
from paceline.stopping import Stopping
from paceline.targets.engines import DEFAULT_ENGINE
from paceline.tree import EMPTY, Tree
from placing import waiting

TRANSFORMERS = "transformers"
LOOKUP = "transformers-lookup"
LOOKUP_TOKENS = 10  # most guesses of transformers' prompt lookup


@dataclass(frozen=True)
class Trial:
    """One generation.

    first_seconds, first_tokens: time until the end of the first pass, and the tokens it gained.
    rounds: passes of the model.
    """

    tokens: list[int]
    seconds: float
    first_seconds: float
    first_tokens: int
    rounds: int

    @property
    def tokens_per_second(self) -> float:
        """The rate of the whole request, prefill included."""
        return len(self.tokens) / self.seconds

    @property
    def decode_tokens_per_second(self) -> float | None:
        """The rate after the first pass; None if there was only one."""
        rest = len(self.tokens) - self.first_tokens
        return rest / (self.seconds - self.first_seconds) if rest else None

    @property
    def acceptance_length(self) -> float:
        """Tokens per pass."""
        return len(self.tokens) / self.rounds


@dataclass
class Pair:
    """native: transformers' model as loaded. session: paceline with another copy.

    stop_ids: tokens that end a text. They are removed from the generation config of `native`, so
    that `generate` continues past them unless told otherwise.
    """

    native: PreTrainedModel
    session: Session
    stop_ids: list[int]
    _clock: list[float] = field(default_factory=list)  # when each pass of `native` ended
    _planners: dict[str, Planner] = field(default_factory=dict)

    @classmethod
    def load(
        cls, model: str, weights: str, engine: str = DEFAULT_ENGINE, **placement: str | None
    ) -> Pair:
        """Load both copies in one place. engine: paceline's. placement: device and dtype."""
        native = load_causal_lm(model, **placement).model
        session = paceline.load(model, "plain", weights=weights, engine=engine, **placement)
        native.generation_config.eos_token_id = None
        pair = cls(native, session, list(session.eos_ids))
        native.register_forward_hook(lambda *_: pair._clock.append(pair._time()))
        return pair

    def _time(self) -> float:
        """The time, after the device has finished all its work."""
        waiting(self.native.device)()
        return perf_counter()

    def _ids(self, text: Sequence[int]) -> torch.Tensor:
        """[1, tokens], for `native`."""
        return torch.tensor([list(text)], device=self.native.device)

    def runner(self, method: str) -> Callable[[Sequence[int], int, bool], Trial]:
        """A function that generates with a method: TRANSFORMERS, LOOKUP, or one of paceline's.

        It takes the prompt's ids, the most new tokens, and whether to continue past the end.
        """
        if method == TRANSFORMERS:
            return self._generate
        if method == LOOKUP:
            return lambda *request: self._generate(*request, prompt_lookup_num_tokens=LOOKUP_TOKENS)
        return lambda *request: self._decode(method, *request)

    def _generate(
        self, ids: Sequence[int], new_tokens: int, ignore_eos: bool, **settings: Any
    ) -> Trial:
        if not ignore_eos:
            settings["eos_token_id"] = self.stop_ids
        prompt = self._ids(ids)
        self._clock.clear()
        began = perf_counter()
        output = self.native.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            **settings,
        )
        ended = perf_counter()
        tokens = output[0, len(ids) :].tolist()
        return Trial(tokens, ended - began, self._clock[0] - began, 1, len(self._clock))

    def _decode(self, method: str, ids: Sequence[int], new_tokens: int, ignore_eos: bool) -> Trial:
        session, stats = self.session, Stats()
        stopping = Stopping(new_tokens, () if ignore_eos else self.stop_ids)
        planner = self._planners.setdefault(method, session.new_planner())
        budget = session.budget_of(session.options)
        session.target.forget()  # read the whole prompt
        began = perf_counter()
        generation = Generation(ids, make_drafter(method), stopping, budget=budget)
        first = None
        for round in decode(session.target, [generation], planner):
            first = first or (perf_counter() - began, len(round.path.tokens))
            stats.add(round)
        seconds = perf_counter() - began
        return Trial(generation.output, seconds, *(first or (seconds, 0)), stats.rounds)

    @torch.inference_mode()
    def first_difference(
        self, ids: Sequence[int], expected: Sequence[int], other: Sequence[int]
    ) -> dict[str, Any] | None:
        """Where two texts diverge; None if they are equal.

        The gaps are the logit of `expected`'s token minus that of `other`'s, in each of the two
        models; there are none if one text simply ends earlier.
        """
        if list(expected) == list(other):
            return None
        pairs = list(zip(expected, other, strict=False))
        place = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
        if place is None:
            return {"position": len(pairs), "lengths": [len(expected), len(other)]}
        text, (one, two) = [*ids, *expected[:place]], pairs[place]
        native = self.native(self._ids(text), use_cache=False).logits[0, -1]
        own = next_scores(self.session.target, text)
        return {
            "position": place,
            "tokens": [one, two],
            "logit_gap_transformers": float(native[one] - native[two]),
            "logit_gap_paceline": float(own[one] - own[two]),
        }

    @contextmanager
    def passes(
        self, text: Sequence[int]
    ) -> Iterator[tuple[Callable[..., float], Callable[..., float]]]:
        """Two timers of a pass, for transformers and for paceline, valid inside the `with` block.

        The first token of a pass is the last of `text`; a timer takes the tokens after it. The rest
        of `text` is in the cache every time.
        """
        past, root = list(text[:-1]), text[-1]
        cache, target = DynamicCache(config=self.native.config), self.session.target
        with torch.inference_mode():
            self.native(self._ids(past), past_key_values=cache, use_cache=True)
        # A pass reads pending tokens, so read them before the clock runs.
        slot = target.open(past)
        target.score({slot: EMPTY})
        target.commit({slot: Accepted((), (root,))})

        @torch.inference_mode()
        def by_transformers(tokens: Sequence[int]) -> float:
            ids = self._ids([root, *tokens])
            began = self._time()
            self.native(ids, past_key_values=cache, use_cache=True)
            seconds = self._time() - began
            cache.crop(-ids.shape[1])
            return seconds

        def by_paceline(tokens: Sequence[int]) -> float:
            tree = Tree.chain(list(tokens))
            began = self._time()
            target.score({slot: tree})
            return self._time() - began

        try:
            yield by_transformers, by_paceline
        finally:
            target.close(slot)

    @torch.inference_mode()
    def prefill_transformers(self, text: Sequence[int]) -> float:
        """Seconds to read a text and score what follows it."""
        keeps = "logits_to_keep" in inspect.signature(self.native.forward).parameters
        last = {"logits_to_keep": 1} if keeps else {}
        ids = self._ids(text)
        began = self._time()
        cache = DynamicCache(config=self.native.config)
        self.native(ids, past_key_values=cache, use_cache=True, **last)
        return self._time() - began

    def prefill_paceline(self, text: Sequence[int]) -> float:
        """Seconds to read a text and score what follows it."""
        target = self.session.target
        target.forget()
        began = self._time()
        slot = target.open(text)
        target.score({slot: EMPTY})
        seconds = self._time() - began
        target.close(slot)
        return seconds


def rotations(names: Sequence[str]) -> Iterator[list[str]]:
    """The names in another rotation each time, without end.

    Every name comes in every position, so drift of the machine affects all alike.
    """
    turntable = deque(names)
    while True:
        yield list(turntable)
        turntable.rotate(-1)
