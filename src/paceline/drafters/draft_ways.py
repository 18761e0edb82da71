"""A draft model with its own drafter, or without where that is clearly faster.

With it, passes bring several guesses, but each is a round of the loop. Without it, a pass brings one
guess and costs little else. The guesses are the same, so only the time decides: what is saved by a
draft model's own drafter depends on the text, and on how long its passes take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.chains import ChainEnd
from paceline.drafters.draft_chain import DraftChain
from paceline.drafters.draft_passes import Said, Speaker
from paceline.drafters.draft_rounds import DraftRounds
from paceline.sampling import GREEDY, Sampler

__all__ = ["FasterWay", "WayTimes"]

_TRIAL = 4
"""Drafts that show how long the other way takes."""
_FIRST, _LONGEST = 32, 512
"""Drafts before the next trial of the other way: four times as many each time that nothing
changes."""
_MEMORY = 32
"""Drafts of a way that count."""
_WORTH = 1.6
"""Rounds are left only if they take this many times as long for a guess: they also bring guesses
beyond those asked for, and gain most in a few long drafts, which a trial easily misses."""


class WayTimes:
    """Seconds per guess both ways, over any number of texts. Decisions depend on nothing else.

    in_rounds: whether rounds are worth their time; at first they are.
    """

    def __init__(self) -> None:
        self.in_rounds = True
        self._seconds, self._guesses = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
        self._wait, self._since, self._left = _FIRST, 0, 0

    @property
    def next_in_rounds(self) -> bool:
        """Which way to draft next."""
        return self.in_rounds != (self._left > 0)

    def drafted(self, in_rounds: bool, seconds: float, guesses: int) -> None:
        """Record a draft of some guesses."""
        self._seconds[in_rounds] += seconds - self._seconds[in_rounds] / _MEMORY
        self._guesses[in_rounds] += guesses - self._guesses[in_rounds] / _MEMORY
        if in_rounds == self.in_rounds:
            self._since += 1
            if not self._left and self._since >= self._wait:
                self._left = _TRIAL
        elif self._left:
            self._left -= 1
            if not self._left:
                self._conclude()

    def _conclude(self) -> None:
        rounds, chain = (self._seconds[way] / self._guesses[way] for way in (True, False))
        before, self.in_rounds = self.in_rounds, rounds <= _WORTH * chain
        self._wait = _FIRST if before != self.in_rounds else min(_LONGEST, 4 * self._wait)
        self._since = 0


class FasterWay(Speaker):
    """Drafts in rounds or as a chain.

    rounds, chain: of the same draft model, in rounds with its own drafter. times: shared by all
    texts of a draft model and its drafter. clock: seconds.
    """

    def __init__(
        self, rounds: DraftRounds, chain: DraftChain, times: WayTimes, clock: Callable[[], float]
    ) -> None:
        self._ways: dict[bool, Speaker] = {True: rounds, False: chain}
        self._times, self._clock = times, clock
        self._in_rounds = times.next_in_rounds
        self._text: tuple[list[int], Sequence[Sequence[int]], Sampler] = [0], (), GREEDY

    def start(self, text: list[int], references: Sequence[Sequence[int]], sampler: Sampler) -> None:
        """See `Speaker.start`."""
        self._text = text, references, sampler
        self._in_rounds = self._times.next_in_rounds
        self._way.start(*self._text)

    def correct(self, kept: int) -> None:
        """See `Speaker.correct`."""
        self._way.correct(kept)

    @property
    def unread(self) -> int:
        """See `Speaker.unread`."""
        return self._way.unread

    def say(self, room: int, most: int, end: ChainEnd | None = None) -> Sequence[Said]:
        """See `Speaker.say`."""
        if self._times.next_in_rounds != self._in_rounds:
            self._way.stop()
            self._in_rounds = not self._in_rounds
            self._way.start(*self._text)
        began = self._clock()
        passes = self._way.say(room, most, end)
        guesses = min(most, sum(len(said.guesses) for said in passes))
        if guesses and not any(said.prefill for said in passes):
            self._times.drafted(self._in_rounds, self._clock() - began, guesses)
        return passes

    def stop(self) -> None:
        """See `Speaker.stop`."""
        self._way.stop()

    @property
    def _way(self) -> Speaker:
        return self._ways[self._in_rounds]
