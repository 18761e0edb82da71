"""The request that every contender gets, and the trial it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import torch

from paceline.bench.memory import measure_load
from paceline.drafters import make_drafter
from paceline.loop import Clock, decode
from paceline.options import Options
from paceline.protocols import Drafter
from paceline.sampling import Draw, Sampler
from paceline.session import Session
from paceline.stats import Stats

PLAIN = "plain"

Answers = Callable[[int], Sequence[int] | None]
"""Turn -> plain decoding's output; None if it failed."""


@dataclass(frozen=True)
class Forced(Sampler):
    """A sampler that draws, then returns the recorded token instead.

    recorded: the tokens after the prompt; past their end, the model's own draws count.
    """

    recorded: Sequence[int] = ()

    def over(self, logits: torch.Tensor, positions: Sequence[int] | None = None) -> Draw:
        own = super().over(logits, positions)

        def draw(row: int, context: Sequence[int]) -> int:
            token = own(row, context)
            place = len(context) - self.prompt_tokens
            return self.recorded[place] if place < len(self.recorded) else token

        return draw


@dataclass(frozen=True)
class Request:
    """A text to generate.

    ids: the prompt, chat template included; references: texts the output may resemble, for
    contenders that copy; recorded: tokens that are forced, if any.
    """

    ids: Sequence[int]
    references: Sequence[Sequence[int]] = ()
    options: Options = field(default_factory=Options)
    recorded: Sequence[int] = ()

    def sampler(self) -> Sampler:
        """The sampler that draws the tokens."""
        own = self.options.sampler(len(self.ids))
        return Forced(**vars(own), recorded=self.recorded) if self.recorded else own


@dataclass(frozen=True)
class Trial:
    """One generation by one contender.

    output: all tokens, including the one that ended the text.
    seconds: from prompt token ids to output token ids.
    stats: as far as the contender can tell; unknown values are zero.
    lossy: whether the text may differ from plain decoding's by design, see `Typical`.
    """

    output: list[int]
    seconds: float
    stats: Stats
    lossy: bool = False


class Contender(Protocol):
    """Something that generates: a method of paceline, or other software on the same model. name: in
    results. loaded: bytes that making it took."""

    name: str
    loaded: int

    def generate(self, request: Request) -> Trial:
        """Generate once. Unless `Method.warm`, the cache is cold: the whole prompt is read."""
        ...


@dataclass
class Method:
    """A method of paceline.

    name: in the notation "anpd:n=5,k=7"; clock: seconds.
    warm: each text begins with what a session that uses only this method would have kept from the
    previous text: cache, drafter, and everything learned. Otherwise texts begin cold: nothing is
    cached, the drafter is new, and nothing is learned yet. Either way, the planner keeps what it
    knows between texts.

    Raises UsageError for an unknown method, ModelError for one that was not trained for the
    session's model.
    """

    name: str
    session: Session
    clock: Clock = perf_counter
    warm: bool = False

    def __post_init__(self) -> None:
        self._planner = self.session.new_planner()
        device = torch.device(self.session.target.describe().device)
        self._drafter, self.loaded = measure_load(device, self._new_drafter)
        self._last: Sequence[int] = ()

    def generate(self, request: Request) -> Trial:
        """Run the loop; drafter and cache are prepared before the clock starts."""
        session, options = self.session, request.options
        new_text = session.texts_of(options, request.ids, request.references, request.sampler())
        self._make_ready()
        stats, clock = Stats(), self.clock
        began = clock()
        generation = new_text(self._drafter)
        for round in decode(session.target, [generation], self._planner, clock):
            stats.add(round)
        # Plain decoding has no guesses to accept, so it stays exact.
        lossy = options.acceptance is not None and self.name != PLAIN
        trial = Trial(generation.output, clock() - began, stats, lossy)
        self._last = generation.context
        return trial

    def _make_ready(self) -> None:
        target = self.session.target
        # Other contenders have used the target since, on this very prompt: that must not help.
        target.forget()
        if not self.warm:
            self._drafter = self._new_drafter()
        elif self._last:
            slot = target.open(self._last)
            try:
                while left := target.pending(slot):
                    target.prefill(slot, left)
            finally:
                target.close(slot)

    def _new_drafter(self) -> Drafter:
        host = replace(self.session.host.fresh(), costs=self._planner.costs)
        return make_drafter(self.name, host)
