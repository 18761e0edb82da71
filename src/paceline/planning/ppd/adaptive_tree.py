"""Which dynamic sparse tree to use, by what is known of the machine and of the guesses so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.cost_curve import MILD, CostCurve, CostPoint, Costs
from paceline.planning.ppd.dynamic_tree import DynamicTree
from paceline.planning.ppd.round_tree import Prospects, prospects_of
from paceline.planning.ppd.share_chances import ShareChances
from paceline.planning.ppd.tree_search import FittedTree, build_tree, survey_widths

__all__ = ["AdaptiveTree", "Limits"]

# Costs no more for more rows: the tree that gains most tokens is the fastest.
_FREE = CostCurve((CostPoint(1, 0, 1.0), CostPoint(1 << 20, 0, 1.0)))

# Widths tried beside the measured ones; then all those next to the best of them.
_WIDTHS = (4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)

# The table counts as much as so many guesses seen.
_PRIOR = 256

_FIRST_REVISION = 128

_LOOK = 16
"""Rounds between two looks at what passes cost."""
_CHANGED = 0.05
"""Costs that have changed by less make no other tree."""


@dataclass(frozen=True)
class Limits:
    """What a tree may be.

    size: guesses and prompt tokens, as `build_tree` counts them, at least `least`; 0 leaves it to the
    curve.
    width: rows of a pass at most, in the place of a size; 0 for none.
    epts: rows that each prompt token takes. floor: the least number of them after a guess; all of
    them make a static tree.
    """

    size: int = 0
    width: int = 0
    epts: int = 1
    floor: int = 1

    @property
    def least(self) -> int:
        """The smallest size: a guess and its prompt tokens."""
        return 1 + self.floor * self.epts


class AdaptiveTree:
    """The dynamic sparse tree of a drafter, which follows what its guesses turn out to be worth.

    chances: how likely guesses are by their shares, as learned so far.

    table: measured beforehand; it counts as much as 256 observations at every distance.
    curve: what passes cost here; None for `MILD`. costs: what they turn out to cost, in the place
    of the curve as soon as something is known; see `follow`. The width is the one that promises
    most tokens per millisecond (PPD, section 5.6.3). Whether guessing pays at all is not asked.

    Trees are built anew after 128 rounds whose guesses could be judged, and then whenever that
    number has doubled: what is known changes ever more slowly. They are also chosen anew when costs
    have changed by more than a twentieth, in passes of plain decoding. Both happen in `observe` and
    `follow`, between rounds.
    """

    def __init__(
        self,
        table: AcceptanceTable,
        curve: CostCurve | None = None,
        limits: Limits = Limits(),
        costs: Costs | None = None,
    ) -> None:
        self._prior = table
        self._stored = self._curve = curve
        self._costs = costs
        self._rounds = 0
        self._budget = 0
        self._limits = limits
        self._hits = [[0] * table.ranks for _ in table.rows]
        self._seen = [0] * table.distances
        self._revision = _FIRST_REVISION
        self.table = table
        self.chances = ShareChances(table.distances)

    def fitting(self, budget: int) -> DynamicTree | None:
        """The tree whose states have at most `budget` nodes, or None where that is too few."""
        self._budget = budget
        return self._fitting(budget)

    def follow(self, context: int) -> None:
        """A round was played; the text has so many tokens in the cache now. Every sixteenth round
        the tree follows what passes cost there."""
        self._rounds += 1
        if self._rounds % _LOOK != 1:
            return
        live = None if self._costs is None else self._costs(context)
        curve = live or (None if self._stored is None else self._stored.at(context))
        if curve is not None and _differs(curve, self._curve or MILD):
            self._curve = curve
            self._prepare()

    @property
    def prospects(self) -> Prospects:
        """What its trees promise now, with all prompt tokens after every root."""
        curve, tree = self._curve or MILD, self._fitting(self._budget)
        return _prospects(self.table, curve, tree, self._limits.epts)

    def _prepare(self) -> None:
        """Build what the next round asks for."""
        self._fitting(self._budget)
        _ = self.prospects

    def _fitting(self, budget: int) -> DynamicTree | None:
        limits = self._limits
        if limits.size:
            whole = limits.size + limits.epts * self.table.distances
            if whole <= budget:
                return _whole(self.table, limits)
            return _of_width(self.table, _FREE, budget + 1, limits)
        if limits.width:
            rows = min(limits.width, budget + 1)
            return _of_width(self.table, self._curve or MILD, rows, limits)
        return _fastest(self.table, self._curve, budget, limits)

    def survey(self) -> list[FittedTree]:
        """What the trees of all widths promise, see `survey_widths`."""
        curve = self._curve or MILD
        return _surveyed(self.table, curve, _coarse(curve), self._limits)

    def observe(self, distance: int, rank: int | None, shares: Sequence[float] = ()) -> None:
        """One more token is known that was guessed at.

        distance: from 1. rank: of the guess that was right, from 0; None where none was. shares: of
        the guesses, see `chances`.
        """
        self.chances.learn(distance, shares, rank)
        self._seen[distance - 1] += 1
        if rank is not None:
            self._hits[distance - 1][rank] += 1
        if distance == 1 and self._seen[0] >= self._revision:
            self._revision *= 2
            self.table = self._posterior()
            self._prepare()

    def _posterior(self) -> AcceptanceTable:
        return AcceptanceTable(
            tuple(
                tuple((_PRIOR * share + hit) / (_PRIOR + seen) for share, hit in zip(row, hits))
                for row, hits, seen in zip(self._prior.rows, self._hits, self._seen)
            )
        )


# A tree takes milliseconds to build, and every text of a batch asks for the same one.
@lru_cache(maxsize=128)
def _whole(table: AcceptanceTable, limits: Limits) -> DynamicTree:
    """The paper's tree of that size, with all prompt tokens after the root."""
    return build_tree(table, limits.size, limits.floor, limits.epts)


@lru_cache(maxsize=128)
def _of_width(
    table: AcceptanceTable, curve: CostCurve, rows: int, limits: Limits
) -> DynamicTree | None:
    """The tree of so many rows that promises most, with fewer prompt tokens if need be."""
    found = _surveyed(table, curve, (rows,) if rows > 0 else (), limits)
    return found[0].tree if found else None


@lru_cache(maxsize=128)
def _fastest(
    table: AcceptanceTable, curve: CostCurve | None, budget: int, limits: Limits
) -> DynamicTree | None:
    """The tree that promises most tokens per millisecond."""
    curve, most = curve or MILD, max(budget, 0) + 1
    widths = tuple(width for width in _coarse(curve) if width <= most)
    found = _surveyed(table, curve, widths, limits)
    # Where no tree fits a width that is tried first, one may still fit all there is room for.
    found = found or _surveyed(table, curve, (most,), limits)
    if not found:
        return None
    best = max(found, key=lambda fitted: fitted.speedup)
    near = _next_to(best.width, (*widths, most))
    found = [best, *_surveyed(table, curve, near, limits)]
    return max(found, key=lambda fitted: fitted.speedup).tree


def _surveyed(
    table: AcceptanceTable, curve: CostCurve, widths: Sequence[int], limits: Limits
) -> list[FittedTree]:
    """Nothing without widths, for which `survey_widths` takes all that the curve has."""
    if not widths:
        return []
    return survey_widths(table, curve, widths, floor=limits.floor, epts=limits.epts)


@lru_cache(maxsize=128)
def _prospects(
    table: AcceptanceTable, curve: CostCurve, best: DynamicTree | None, epts: int
) -> Prospects:
    """What is to be had with all prompt tokens, which the best trees of all rounds may not use."""
    whole = 1 + epts * (1 + table.distances)
    rows = whole if best is None else max(whole, *(state.width for state in best.states))
    rate = 0.0 if best is None else best.tokens_per_pass / best.milliseconds(curve)
    size = max(1 + epts, rows - 1 - epts * table.distances)
    return prospects_of(build_tree(table, size, epts=epts), curve, rate)


def _coarse(curve: CostCurve) -> tuple[int, ...]:
    """The measured widths and those between them, ascending. Beyond the widest one costs are taken
    to grow with the rows, which never pays."""
    widest = max(_WIDTHS) if curve is MILD else curve.widths[-1]
    return tuple(sorted({*curve.widths, *_WIDTHS} & {*range(1, widest + 1)}))


def _next_to(best: int, tried: Sequence[int]) -> tuple[int, ...]:
    """All widths between `best` and those that were tried beside it."""
    below = max((width for width in tried if width < best), default=best - 1)
    above = min((width for width in tried if width > best), default=best + 1)
    return tuple(width for width in range(below + 1, above) if width != best)


def _differs(one: CostCurve, other: CostCurve) -> bool:
    """Whether passes have come to cost something else, in passes of plain decoding."""
    widths = {*one.widths, *other.widths}
    return any(abs(one.relative(n) / other.relative(n) - 1) > _CHANGED for n in widths)
