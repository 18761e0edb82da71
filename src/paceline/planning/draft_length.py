"""How far a draft model guesses ahead: as long as one more pass saves more time than it costs.

The cost of a pass is measured. It saves the current time per token times the chance that its token
is accepted: that all guesses so far are right, by the draft model's own estimates corrected by what
came true, times the overall share of right guesses, since the next claim is not known yet. So a
doubtful guess ends the draft if passes of the draft model are expensive, but not if they are cheap.

Before a draft, everything but the claims of its guesses is known. So the decision to continue is a
table (`ChainEnd`): the least chance that all guesses are right, by their number, and the chance of
one guess, by depth and claim. With it a whole draft is one call of the C library.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from math import prod

from paceline.chains import ChainEnd
from paceline.planning.calibration import ChainCalibration
from paceline.planning.cost_curve import CostCurve, LiveCosts
from paceline.planning.running_time import RunningTime

LONGEST = 32
"""Most guesses of a draft."""
_FIRST = 4
"""Most guesses before any time is known."""
_MEMORY = 64.0
_ROW = 0.25
"""Share of a level's time that one more row in it takes."""
_STEP = 1 / 32
_FORGOTTEN = 1 / 16
"""Share of what is known about rounds that is forgotten with every new one."""


class DraftLength:
    """What is known about one draft model and its target, over any number of texts.

    live: what passes of the target cost, which prices another row; without a curve, rows are free
    here and left to whoever sizes the tree.
    longest: most guesses, >= 1.

    Decisions depend on the times given and nothing else.
    """

    def __init__(self, live: LiveCosts | None = None, longest: int = LONGEST) -> None:
        self.live, self.longest = live or LiveCosts(), longest
        self._known = ChainCalibration(_MEMORY, LONGEST)
        self._priced: tuple[CostCurve | None, int, Sequence[float]] | None = None
        self._useful, self._scored = LONGEST, 0
        self._draft_pass, self._plain_pass = RunningTime(), RunningTime()
        self._round = RunningTime()
        self._tokens_per_draft_pass = 1.0
        # Over the same rounds, recent ones most: lengths change, and both change with them.
        self._spent = self._gained = 0.0

    def pays(self, claims: Sequence[float]) -> bool:
        """Whether one more draft pass is worth its time after guesses of these claims."""
        depth = len(claims)
        if depth == 0:
            return True  # the caller decides whether to guess at all
        return depth < self._limit and self._path_chance(claims) >= next(self._least(depth))

    def end(self, claims: Sequence[float], confidence: float = 0.0, worth: float = 0.0) -> ChainEnd:
        """The same for all guesses after these, in one table instead of a call per guess.

        confidence: a guess that claims less is the last one. worth: see `ChainEnd`.
        """
        before, least = len(claims), array("d")
        for chance in islice(self._least(before + 1), max(1, self._limit - before)):
            least.append(chance)
            if chance > 1.0:  # unreachable
                break
        joint = self._path_chance(claims)
        return ChainEnd(confidence, least, self._known.table, before, joint, worth)

    @property
    def worth(self) -> float:
        """The chance that a guess needs to be worth a row of the target; 0 while unknown."""
        saved = self.token_milliseconds
        if saved is None:
            return 0.0
        price = self._prices(1)[min(self._scored, LONGEST - 1)]
        price += _ROW * (self._draft_pass.value or 0.0)
        return min(1.0, price / saved / self._known.usual) if saved else 0.0

    @property
    def _limit(self) -> int:
        """Most guesses."""
        unknown = self.token_milliseconds is None or self._draft_pass.value is None
        return min(self.longest, self._useful, _FIRST if unknown else self.longest)

    def _path_chance(self, claims: Sequence[float]) -> float:
        """The chance that all guesses with these claims come true."""
        return prod(self._known.table.chance(claim, at) for at, claim in enumerate(claims, start=1))

    def _least(self, depth: int) -> Iterator[float]:
        """The joint chances that `depth`, `depth` + 1, … guesses need to be worth another pass."""
        saved, taken = self.token_milliseconds, self._draft_pass.value
        if saved is None or taken is None:
            yield from repeat(0.0)
            return
        coming = max(1, round(self._tokens_per_draft_pass))
        usual = self._known.usual
        gained = saved * sum(usual**step for step in range(1, coming + 1))
        for price in self._prices(coming)[depth:]:
            spent = taken + price
            yield spent / gained if gained else float(spent > 0)

    @property
    def token_milliseconds(self) -> float | None:
        """Current time per token, at most a text's share of a plain pass; None before any round."""
        if not self._gained or self._plain_pass.value is None:
            return None
        known = self._plain_pass.value, self._spent / self._gained
        return min(known) if self.live.share is None else min(*known, self.live.share)

    def drafted(self, milliseconds: float, tokens: int, first: bool = False) -> None:
        """Record a pass of the draft model that took `milliseconds` and gained `tokens` guesses.

        first: of its draft. It finds little of the draft model in the processor's caches, so it
        takes longer than the passes after it, which are the ones decided on: it is only an upper
        bound for them.
        """
        known = self._draft_pass.value
        if not first or (known is not None and milliseconds < known):
            self._draft_pass.add(milliseconds)
        self._tokens_per_draft_pass += (tokens - self._tokens_per_draft_pass) * _STEP

    def played(
        self, target_milliseconds: float, milliseconds: float, tokens: int, context: int
    ) -> None:
        """Record a round that gained `tokens` tokens; `scored` comes before.

        target_milliseconds: from the guesses to their result; milliseconds: of the whole round.
        context: tokens in the cache.
        """
        self.live.look(context)
        curve = self.live.curve
        # The curve only says what guesses add: passes slow down as the text grows.
        relative = 1.0 if curve is None else curve.relative(1 + self._scored)
        self._plain_pass.add(target_milliseconds / relative)
        usual = self._round.add(milliseconds)
        self._spent += min(milliseconds, 2 * usual) - _FORGOTTEN * self._spent
        self._gained += tokens - _FORGOTTEN * self._gained

    def scored(self, guesses: int, scored: int) -> None:
        """Record that the target scored the first `scored` of `guesses` guesses in a row. After a
        cut, the next draft tries one more than that; if nothing was cut, more."""
        cut = scored < guesses
        self._useful = 1 + scored if cut else max(self._useful, 2 * guesses)
        self._scored = scored

    def judge(self, claims: Sequence[float], right: int) -> None:
        """Record that the first `right` guesses with these claims came true, but not the next."""
        for depth, claim in enumerate(claims[: right + 1], start=1):
            self._known.learn(claim, depth, depth <= right)

    def _prices(self, more: int) -> Sequence[float]:
        """Extra milliseconds of a pass for `more` rows, by its width: 1, 2, …"""
        curve = self.live.curve
        if self._priced is None or self._priced[:2] != (curve, more):
            most = 1 + LONGEST  # after no guess, one, … all
            costs = [curve.cost(1 + at) if curve else 0.0 for at in range(most + more)]
            prices = [max(0.0, costs[at + more] - costs[at]) for at in range(most)]
            self._priced = curve, more, prices
        return self._priced[2]
