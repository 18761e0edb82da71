"""Which dynamic sparse tree to use, by what is known of the machine and of the guesses so far."""

from __future__ import annotations

from functools import lru_cache

from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.dynamic_tree import DynamicTree
from paceline.planning.tree_search import FittedTree, build_tree, survey_widths

__all__ = ["AdaptiveTree", "unmeasured"]

MILD = CostCurve((CostPoint(1, 0, 1.0), CostPoint(101, 0, 2.0)))
"""Stands in for a curve that nobody has measured: a row more costs one per cent of a pass."""

# Costs no more for more rows: the tree that gains most tokens is the fastest.
_FREE = CostCurve((CostPoint(1, 0, 1.0), CostPoint(1 << 20, 0, 1.0)))

# Widths tried where the curve is a straight line.
_WIDTHS = (4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)

# The table counts as much as so many guesses seen.
_PRIOR = 256

_FIRST_REVISION = 128


def unmeasured(distances: int, ranks: int = 10) -> AcceptanceTable:
    """A table for guesses that nobody has measured yet: falling with distance and rank about as
    measured ones do, and a little low, so that trees start small."""
    return AcceptanceTable(
        tuple(
            tuple(0.4 / distance / rank**1.75 for rank in range(1, ranks + 1))
            for distance in range(1, distances + 1)
        )
    )


class AdaptiveTree:
    """The dynamic sparse tree of a drafter, which follows what its guesses turn out to be worth.

    table: measured beforehand; it counts as much as 256 observations at every distance.
    curve: what passes cost here; None for `MILD`. The width is the one that promises most tokens
    per millisecond (PPD, section 5.6.3). Whether guessing pays at all is not asked.
    size: guesses and prompt tokens, as `build_tree` counts them, at least 1 + epts; 0 leaves it to
    the curve.
    epts: rows that each prompt token takes.
    width: rows of a pass at most, in the place of a size; 0 for none.

    Trees are built anew after 128 rounds whose guesses could be judged, and then whenever that
    number has doubled: what is known changes ever more slowly.
    """

    def __init__(
        self,
        table: AcceptanceTable,
        curve: CostCurve | None = None,
        size: int = 0,
        epts: int = 1,
        width: int = 0,
    ) -> None:
        self._prior = table
        self._curve = curve
        self._size = size
        self._epts = epts
        self._width = width
        self._hits = [[0] * table.ranks for _ in table.rows]
        self._seen = [0] * table.distances
        self._revision = _FIRST_REVISION
        self.table = table

    def fitting(self, budget: int) -> DynamicTree | None:
        """The tree whose states have at most `budget` nodes, or None where that is too few."""
        if self._size:
            whole = self._size + self._epts * self.table.distances
            if whole <= budget:
                return _whole(self.table, self._size, self._epts)
            return _of_width(self.table, _FREE, budget + 1, self._epts)
        if self._width:
            rows = min(self._width, budget + 1)
            return _of_width(self.table, self._curve or MILD, rows, self._epts)
        return _fastest(self.table, self._curve, budget, self._epts)

    def survey(self) -> list[FittedTree]:
        """What the trees of all widths promise, see `survey_widths`."""
        widths = _WIDTHS if self._curve is None else self._curve.widths
        return survey_widths(self.table, self._curve or MILD, widths, epts=self._epts)

    def observe(self, distance: int, rank: int | None) -> None:
        """One more guess can be judged.

        distance: from 1. rank: of the guess that was right, from 0; None where none was.
        """
        self._seen[distance - 1] += 1
        if rank is not None:
            self._hits[distance - 1][rank] += 1
        if distance == 1 and self._seen[0] >= self._revision:
            self._revision *= 2
            self.table = self._posterior()

    def _posterior(self) -> AcceptanceTable:
        return AcceptanceTable(
            tuple(
                tuple((_PRIOR * share + hit) / (_PRIOR + seen) for share, hit in zip(row, hits))
                for row, hits, seen in zip(self._prior.rows, self._hits, self._seen)
            )
        )


# A tree takes milliseconds to build, and every text of a batch asks for the same one.
@lru_cache(maxsize=128)
def _whole(table: AcceptanceTable, size: int, epts: int) -> DynamicTree:
    """The paper's tree of that size, with all prompt tokens behind the root."""
    return build_tree(table, size, epts=epts)


@lru_cache(maxsize=128)
def _of_width(table: AcceptanceTable, curve: CostCurve, rows: int, epts: int) -> DynamicTree | None:
    """The tree of so many rows that promises most, with fewer prompt tokens if need be."""
    found = survey_widths(table, curve, (rows,), epts=epts) if rows > 0 else []
    return found[0].tree if found else None


@lru_cache(maxsize=128)
def _fastest(
    table: AcceptanceTable, curve: CostCurve | None, budget: int, epts: int
) -> DynamicTree | None:
    """The tree that promises most tokens per millisecond."""
    known = _WIDTHS if curve is None else curve.widths
    widths = tuple(width for width in known if width <= budget + 1)
    curve = curve or MILD
    # Where no tree fits a measured width, one may still fit between two of them.
    found = survey_widths(table, curve, widths, epts=epts) if widths else []
    found = found or survey_widths(table, curve, (max(budget, 0) + 1,), epts=epts)
    return max(found, key=lambda fitted: fitted.speedup).tree if found else None
