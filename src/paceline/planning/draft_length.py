"""How far a draft model guesses ahead: as long as one more pass of it gains more than it takes.

What a pass takes is measured. What it gains is the chance that its token will be accepted, times
the time that a token takes as things are: that is what an accepted guess saves. The chance is that
of all guesses so far, by the draft model's own word corrected by what came true, times the share of
guesses that are right in general, since what the next one claims is not known yet. So a doubtful
guess ends the draft where passes of the draft model are costly, and does not where they are cheap.

Before a draft all of that is known but for what its guesses claim. So whether it goes on is a table:
by how many guesses there are, the least chance that all of them are right together, and by depth and
claim, the chance that one is (`ChainEnd`). With it a whole draft is one call of the C library.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from math import prod

from paceline.chains import ChainEnd, ChanceTable
from paceline.planning.calibration import Calibration, chance_table
from paceline.planning.cost_curve import CostCurve
from paceline.planning.running_time import RunningTime

__all__ = ["LONGEST", "DraftLength"]

LONGEST = 32
"""Guesses of a draft at most."""
_FIRST = 4
"""Guesses as long as nothing is known about times."""
_MEMORY = 64.0
_STEP = 1 / 32
_FORGOTTEN = 1 / 16
"""Of what is known of rounds, with every new one."""


@dataclass
class DraftLength:
    """What is known about one draft model and its target, over any number of texts.

    curve: what passes of the target cost, for what a row more costs; without one a row is free
    here, and whoever sizes the tree looks at rows.
    longest: guesses at most, >= 1.

    With the same times it decides the same.
    """

    curve: CostCurve | None = None
    longest: int = LONGEST
    _calibration: Calibration = field(default_factory=lambda: Calibration(_MEMORY))
    # What is known of them, for ends of chains.
    _chances: ChanceTable = field(default_factory=lambda: chance_table(LONGEST))
    _priced: tuple[CostCurve | None, int, Sequence[float]] | None = None
    _useful: int = LONGEST
    _draft_pass: RunningTime = field(default_factory=RunningTime)
    _target_pass: RunningTime = field(default_factory=RunningTime)
    _round: RunningTime = field(default_factory=RunningTime)
    _tokens_per_draft_pass: float = 1.0
    # Of the same rounds, the last ones most: lengths change, and both change with them.
    _spent: float = 0.0
    _gained: float = 0.0

    def pays(self, claims: Sequence[float]) -> bool:
        """Whether one more pass of the draft model is worth its time, after guesses that claim to
        be right with these chances, each where the one before it is."""
        depth = len(claims)
        if depth == 0:
            return True  # whether to guess at all is for who asks
        if depth >= self._limit:
            return False
        return self._path_chance(claims) >= next(self._least(depth))

    def end(self, claims: Sequence[float], confidence: float = 0.0) -> ChainEnd:
        """The same for all guesses after these, so that nobody need be asked after each of them.

        confidence: a guess that claims less is the last one.
        """
        before, least = len(claims), array("d")
        for chance in islice(self._least(before + 1), max(1, self._limit - before)):
            least.append(chance)
            if chance > 1.0:  # which nothing can reach
                break
        return ChainEnd(confidence, least, self._chances, before, self._path_chance(claims))

    @property
    def _limit(self) -> int:
        """Guesses at most."""
        unknown = self.token_milliseconds is None or self._draft_pass.value is None
        return min(self.longest, self._useful, _FIRST if unknown else self.longest)

    def _path_chance(self, claims: Sequence[float]) -> float:
        """The chance that all of these come true."""
        return prod(self._chances.chance(claim, at) for at, claim in enumerate(claims, start=1))

    def _least(self, depth: int) -> Iterator[float]:
        """The chance that so many guesses, and one more each time, have to have together, for
        another pass to be worth its time."""
        saved, taken = self.token_milliseconds, self._draft_pass.value
        if saved is None or taken is None:
            yield from repeat(0.0)
            return
        coming = max(1, round(self._tokens_per_draft_pass))
        usual = self._calibration.usual
        gained = saved * sum(usual**step for step in range(1, coming + 1))
        for price in self._prices(coming)[depth:]:
            spent = taken + price
            yield spent / gained if gained else float(spent > 0)

    @property
    def token_milliseconds(self) -> float | None:
        """What a token takes as things are, at most a target pass; None before the first round."""
        if not self._gained or self._target_pass.value is None:
            return None
        plain = self._target_pass.value if self.curve is None else self.curve.cost(1)
        return min(plain, self._spent / self._gained)

    def drafted(self, milliseconds: float, tokens: int, first: bool = False) -> None:
        """A pass of the draft model took so long and gained so many guesses.

        first: of its draft. It finds little of the draft model in the processor's caches and takes
        longer than those after it, of which each is decided; so it says no more than that these
        take no longer.
        """
        known = self._draft_pass.value
        if not first or (known is not None and milliseconds < known):
            self._draft_pass.add(milliseconds)
        self._tokens_per_draft_pass += (tokens - self._tokens_per_draft_pass) * _STEP

    def played(self, target_milliseconds: float, milliseconds: float, tokens: int) -> None:
        """A round gained so many tokens.

        target_milliseconds: from the guesses to what became of them; milliseconds: of all of the
        round.
        """
        self._target_pass.add(target_milliseconds)
        self._round.add(milliseconds)
        usual = milliseconds if self._round.value is None else self._round.value
        self._spent += min(milliseconds, 2 * usual) - _FORGOTTEN * self._spent
        self._gained += tokens - _FORGOTTEN * self._gained

    def scored(self, guesses: int, scored: int) -> None:
        """Of so many guesses in a row the target was asked about the first `scored`. Who cut them
        may do so again, so one more is tried next time; and where nothing was cut, more."""
        cut = scored < guesses
        self._useful = 1 + scored if cut else max(self._useful, 2 * guesses)

    def judge(self, claims: Sequence[float], right: int) -> None:
        """Of guesses that claimed such chances the first `right` came true; the one after them, if
        it is among these, did not."""
        for depth, claim in enumerate(claims[: right + 1], start=1):
            self._calibration.learn(claim, depth, depth <= right, self._chances)

    def _prices(self, more: int) -> Sequence[float]:
        """Milliseconds that a pass takes longer with some rows more, by its width: 1, 2, …"""
        if self._priced is None or self._priced[:2] != (self.curve, more):
            costs = [self.curve.cost(1 + at) if self.curve else 0.0 for at in range(LONGEST + more)]
            prices = [max(0.0, costs[at + more] - costs[at]) for at in range(LONGEST)]
            self._priced = self.curve, more, prices
        return self._priced[2]
