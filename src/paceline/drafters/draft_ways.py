"""A draft model with or without its own drafter, whichever is faster.

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
from paceline.planning.running_time import RunningTime
from paceline.sampling import GREEDY, Sampler

__all__ = ["FasterWay", "WayTimes"]

_TRIAL = 4
"""Drafts that show how long the other way takes."""
_FIRST, _LONGEST = 8, 256
"""Drafts before the next trial of the other way: twice as many each time that it was slower."""


class WayTimes:
    """Seconds per guess both ways, over any number of texts. Decisions depend on nothing else.

    in_rounds: the way that has been faster; at first in rounds.
    """

    def __init__(self) -> None:
        self.in_rounds = True
        self._times = {True: RunningTime(), False: RunningTime()}
        self._wait, self._since, self._left = _FIRST, 0, 0

    @property
    def next_in_rounds(self) -> bool:
        """Which way to draft next."""
        return self.in_rounds != (self._left > 0)

    def drafted(self, in_rounds: bool, seconds: float, guesses: int) -> None:
        """Record a draft of some guesses."""
        self._times[in_rounds].add(seconds / guesses)
        if in_rounds == self.in_rounds:
            self._since += 1
            if not self._left and self._since >= self._wait:
                self._left = _TRIAL
                self._times[not in_rounds].learn_anew()
        elif self._left:
            self._left -= 1
            if not self._left:
                self._conclude()

    def _conclude(self) -> None:
        best, other = (self._times[way].value for way in (self.in_rounds, not self.in_rounds))
        faster = best is not None and other is not None and other < best
        self.in_rounds ^= faster
        self._wait = _FIRST if faster else min(_LONGEST, 2 * self._wait)
        self._since = 0


class FasterWay(Speaker):
    """Drafts in rounds or as a chain.

    times: shared by all texts of a draft model and its drafter. clock: seconds.
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
        # More guesses than were asked for are rarely wanted.
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
