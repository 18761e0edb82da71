"""What is asked of every contender alike, and what it hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from paceline.drafters import make_drafter
from paceline.loop import Clock, decode
from paceline.options import Options
from paceline.protocols import Drafter
from paceline.sampling import Sampler
from paceline.stats import Stats

if TYPE_CHECKING:
    from paceline.session import Session

__all__ = ["PLAIN", "Contender", "Method", "Request", "Trial"]

PLAIN = "plain"


@dataclass(frozen=True)
class Request:
    """One text to generate.

    ids: the prompt, chat template included; references: texts the output may resemble, for
    contenders that copy.
    """

    ids: Sequence[int]
    references: Sequence[Sequence[int]] = ()
    options: Options = field(default_factory=Options)

    def sampler(self) -> Sampler:
        """What draws the tokens."""
        return self.options.sampler(len(self.ids))


@dataclass(frozen=True)
class Trial:
    """One generation of one contender.

    output: all tokens, the one that ended the text included.
    seconds: from the token ids of the prompt to those of the output.
    stats: as far as the contender can tell; what it leaves at zero is not known.
    lossy: whether the text may be another one than plain decoding's by design, see `Typical`.
    """

    output: list[int]
    seconds: float
    stats: Stats
    lossy: bool = False


class Contender(Protocol):
    """Something that generates: a method of paceline, or other software on the same model."""

    @property
    def name(self) -> str:
        """As it stands in results."""
        ...

    def generate(self, request: Request) -> Trial:
        """Generate once, from a cold cache: the whole prompt is read."""
        ...


@dataclass
class Method:
    """A method of paceline.

    name: in the notation "anpd:n=5,k=7"; clock: seconds.
    warm: every text begins with what a session that writes with this method alone would have from
    the one before: its cache, its drafter, and all that was learned. Else texts begin cold: nothing
    is cached, and the drafter is new and so is what drafters learn. Either way plans keep what they
    know from text to text.

    Raises UsageError for a method that does not exist, ModelError for one that was not trained for
    the session's model.
    """

    name: str
    session: Session
    clock: Clock = perf_counter
    warm: bool = False

    def __post_init__(self) -> None:
        self._planner = self.session.new_planner()
        self._drafter = self._new_drafter()
        self._last: Sequence[int] = ()

    def generate(self, request: Request) -> Trial:
        """Run the loop; drafter and cache are made ready before the clock starts."""
        session, options = self.session, request.options
        new_text = session.texts_of(options, request.ids, request.references, request.sampler())
        self._make_ready()
        stats, clock = Stats(), self.clock
        began = clock()
        generation = new_text(self._drafter)
        for round in decode(session.target, [generation], self._planner, clock):
            stats.add(round)
        # Without guesses there is nothing to accept, so plain decoding stays what it is.
        lossy = options.acceptance is not None and self.name != PLAIN
        trial = Trial(generation.output, clock() - began, stats, lossy)
        self._last = generation.context
        return trial

    def _make_ready(self) -> None:
        target = self.session.target
        # Others have used the target since: their texts, this prompt among them, must not help.
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
