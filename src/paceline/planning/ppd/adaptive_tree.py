"""Which dynamic sparse tree to use, given the machine and the guesses so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.calibration import ShareChances
from paceline.planning.cost_curve import MILD, CostCurve, CostPoint, Costs, LiveCosts
from paceline.planning.ppd.dynamic_tree import DynamicTree, StateTree
from paceline.planning.ppd.round_tree import Prospects, best_tree, prospects_of
from paceline.planning.ppd.tree_search import FittedTree, build_tree, survey_widths

# More rows cost nothing: the tree that gains most tokens is the fastest.
_FREE = CostCurve((CostPoint(1, 0, 1.0), CostPoint(1 << 20, 0, 1.0)))

# Widths tried in addition to measured ones; then all those next to the best of them.
_WIDTHS = (4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)

# The table counts as much as this many observed guesses.
_PRIOR = 256

_FIRST_REVISION = 128

_CHANGED = 0.05
"""Cost changes smaller than this do not change the tree."""


@dataclass(frozen=True)
class Limits:
    """Limits on a tree.

    size: guesses and prompt tokens, as in `build_tree`, at least `least`; 0: the curve decides.
    width: most rows of a pass, instead of a size; 0 for none.
    epts: rows per prompt token. floor: least prompt tokens after a guess; all make a static tree.
    """

    size: int = 0
    width: int = 0
    epts: int = 1
    floor: int = 1

    @property
    def least(self) -> int:
        """The smallest size: a guess and its prompt tokens."""
        return 1 + self.floor * self.epts

    @property
    def narrowest(self) -> int:
        """Rows of the narrowest pass with a tree: the smallest, the root and its prompt tokens."""
        return 1 + max(1, self.floor) * self.epts + self.least


class AdaptiveTree:
    """The dynamic sparse tree of a drafter, adapted to how often its guesses turn out right.

    chances: how likely guesses are by their shares, as learned so far.

    table: measured beforehand; it counts as much as 256 observations at every distance.
    curve: pass costs on this machine; None for `MILD`. costs: observed pass costs, which replace
    the curve as soon as they are known; see `follow`. The width is the one that promises most
    tokens per millisecond (PPD, section 5.6.3), whether or not guessing pays at all.

    Trees are rebuilt after 128 rounds whose guesses could be judged, and then whenever that number
    has doubled, since knowledge changes ever more slowly. They are also chosen again when costs, in
    passes of plain decoding, have changed by more than a twentieth. Both happen between rounds, in
    `observe` and `follow`.
    """

    def __init__(
        self,
        table: AcceptanceTable,
        curve: CostCurve | None = None,
        limits: Limits = Limits(),
        costs: Costs | None = None,
    ) -> None:
        self._prior = table
        self._live, self._curve = LiveCosts(costs, curve), curve or MILD
        self._budget = 0
        self._limits = limits
        self._hits = [[0] * table.ranks for _ in table.rows]
        self._seen = [0] * table.distances
        self._revision = _FIRST_REVISION
        self.table = table
        self.chances = ShareChances(table.distances)
        # Of a round without guesses: what it depends on, and the tree.
        self._unguessed: tuple[object, StateTree] | None = None

    def fitting(self, budget: int) -> DynamicTree | None:
        """The tree whose states have at most `budget` nodes, or None if that is too few."""
        self._budget = budget
        return _best(self.table, self._curve, budget, self._limits)

    def of_round(self, shares: Sequence[Sequence[float]], most: int) -> StateTree:
        """The tree of at most `most` nodes for a round whose guesses have these shares; see
        `best_tree`."""
        epts = self._limits.epts
        if shares:
            return best_tree(self.chances.of(shares), self.prospects, most, epts)
        # The same in every such round, until something else is known.
        known = self.table, self._curve, self._budget, most
        if self._unguessed is None or self._unguessed[0] != known:
            self._unguessed = known, best_tree((), self.prospects, most, epts)
        return self._unguessed[1]

    def follow(self, context: int) -> None:
        """Record a round, after which the text has `context` tokens in the cache, and adapt the
        tree to the pass costs there; see `LiveCosts.look`."""
        if not self._live.look(context) or self._live.curve is None:
            return
        curve = self._live.curve.coarse(_WIDTHS[-1])  # a tree for each width takes long to build
        # In passes of plain decoding.
        changes = (
            abs(curve.relative(width) / self._curve.relative(width) - 1)
            for width in {*curve.widths, *self._curve.widths}
        )
        if any(change > _CHANGED for change in changes):
            self._curve = curve
            _ = self.prospects  # built now, with the tree, for the next round

    @property
    def prospects(self) -> Prospects:
        """What its trees currently promise, with all prompt tokens after every root."""
        best = _best(self.table, self._curve, self._budget, self._limits)
        return _prospects(self.table, self._curve, best, self._limits.epts)

    def survey(self) -> list[FittedTree]:
        """What the trees of all widths promise; see `survey_widths`."""
        widths, limits = _coarse(self._curve), self._limits
        return survey_widths(self.table, self._curve, widths, floor=limits.floor, epts=limits.epts)

    def observe(self, distance: int, rank: int | None, shares: Sequence[float] = ()) -> None:
        """Learn from a token that was guessed at. distance: from 1. rank: of the right guess, from
        0; None if there was none. shares: of the guesses, see `chances`."""
        self.chances.learn(distance, rank, shares)
        self._seen[distance - 1] += 1
        if rank is not None:
            self._hits[distance - 1][rank] += 1
        if distance == 1 and self._seen[0] >= self._revision:
            self._revision *= 2
            rows = zip(self._prior.rows, self._hits, self._seen)
            self.table = AcceptanceTable(
                tuple(
                    tuple((_PRIOR * share + hit) / (_PRIOR + seen) for share, hit in zip(row, hits))
                    for row, hits, seen in rows
                )
            )
            _ = self.prospects


# A tree takes milliseconds to build, and all texts of a batch ask for the same one.
@lru_cache(maxsize=128)
def _best(
    table: AcceptanceTable, curve: CostCurve, budget: int, limits: Limits
) -> DynamicTree | None:
    """The tree within these limits and of at most `budget` nodes that promises most tokens per
    millisecond, with fewer prompt tokens if need be."""
    surveyed = partial(survey_widths, table, floor=limits.floor, epts=limits.epts)
    most = max(budget, 0) + 1
    if limits.size:
        if limits.size + limits.epts * table.distances <= budget:
            # The paper's tree of that size, with all prompt tokens after the root.
            return build_tree(table, limits.size, limits.floor, limits.epts)
        found = surveyed(_FREE, (most,))
    elif limits.width:
        found = surveyed(curve, (min(limits.width, most),))
    else:
        widths = tuple(width for width in _coarse(curve) if width <= most)
        found = surveyed(curve, widths)
        # If no tree fits the widths tried first, the narrowest may still fit the budget.
        found = found or surveyed(curve, (min(most, limits.narrowest),))
        if found:
            best = max(found, key=lambda fitted: fitted.speedup)
            near = _next_to(best.width, (*widths, min(most, _widest(curve) + 1)))
            found = [best, *surveyed(curve, near)]
    return max(found, key=lambda fitted: fitted.speedup).tree if found else None


@lru_cache(maxsize=128)
def _prospects(
    table: AcceptanceTable, curve: CostCurve, best: DynamicTree | None, epts: int
) -> Prospects:
    """Prospects with all prompt tokens, which the best tree may not use."""
    whole = 1 + epts * (1 + table.distances)
    rows = whole if best is None else max(whole, *(state.width for state in best.states))
    rate = 0.0 if best is None else best.tokens_per_pass / best.milliseconds(curve)
    size = max(1 + epts, rows - 1 - epts * table.distances)
    return prospects_of(build_tree(table, size, epts=epts), curve, rate)


def _coarse(curve: CostCurve) -> tuple[int, ...]:
    """The measured widths and some between them, ascending."""
    return tuple(sorted({*curve.widths, *_WIDTHS} & {*range(1, _widest(curve) + 1)}))


def _widest(curve: CostCurve) -> int:
    """The widest pass to try. Beyond the widest one measured, costs are assumed proportional to
    rows, which never pays."""
    return max(_WIDTHS) if curve is MILD else curve.widths[-1]


def _next_to(best: int, tried: Sequence[int]) -> tuple[int, ...]:
    """All widths between `best` and its neighbours in `tried`."""
    below = max((width for width in tried if width < best), default=best - 1)
    above = min((width for width in tried if width > best), default=best + 1)
    return tuple(width for width in range(below + 1, above) if width != best)
