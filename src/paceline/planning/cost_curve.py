"""The cost of a target pass as a function of its width: pure numbers, measured elsewhere; and what
passes cost at present.

The width is the number of rows in a pass: the root and every node. Nothing here assumes that costs
grow with it: processors have kernels for certain numbers of rows, so three may cost more than four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import isfinite
from typing import Any

_LOOK = 16
_WIDEST, _LEAST, _MOST = 1 << 16, 1e-6, 1e9
"""Rows and milliseconds of a record: beyond them a planner would want all memory, or overflow."""


@dataclass(frozen=True)
class CostPoint:
    """One measurement.

    width: rows of the pass, root included, >= 1.
    context: tokens in the cache before the root, >= 0.
    milliseconds: median time of the pass, > 0.
    """

    width: int
    context: int
    milliseconds: float


@dataclass(frozen=True)
class CostCurve:
    """Measured costs of a pass, at one or more context lengths.

    points: in any order; every context needs a point of width 1, which is plain decoding.

    Raises ValueError if a point is out of range or duplicated, or width 1 is missing.
    """

    points: tuple[CostPoint, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a cost curve needs at least one point")
        for point in self.points:
            if point.width < 1 or point.context < 0:
                raise ValueError(f"{point} has a width below 1 or a context below 0")
            if not (isfinite(point.milliseconds) and point.milliseconds > 0):
                raise ValueError(f"{point} has a time that is not positive")
        if len({(point.width, point.context) for point in self.points}) < len(self.points):
            raise ValueError("a width was given twice at one context")
        for context, costs in self._costs.items():
            if 1 not in costs:
                raise ValueError(f"the cost of one row at context {context} is missing")

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The measured widths, ascending."""
        return tuple(sorted({point.width for point in self.points}))

    @cached_property
    def contexts(self) -> tuple[int, ...]:
        """The measured context lengths, ascending."""
        return tuple(self._costs)

    @cached_property
    def _parts(self) -> dict[int, CostCurve]:
        """What `at` returns, by context."""
        return {
            context: CostCurve(tuple(point for point in self.points if point.context == context))
            for context in self.contexts
        }

    @cached_property
    def _costs(self) -> dict[int, dict[int, float]]:
        """Context -> width -> milliseconds, both ascending."""
        costs: dict[int, dict[int, float]] = {}
        for point in sorted(self.points, key=lambda point: (point.context, point.width)):
            costs.setdefault(point.context, {})[point.width] = point.milliseconds
        return costs

    def cost(self, width: int, context: int | None = None) -> float:
        """Milliseconds of a pass over `width` rows.

        context: rounded to the nearest measured one; None is the shortest. Between two measured
        widths the cost is interpolated; beyond the widest a row costs as much as between the last
        two.

        Raises ValueError for a width below 1.
        """
        if width < 1:
            raise ValueError(f"a pass has at least one row, got {width}")
        costs = self._costs[self._nearest(context)]
        if width in costs:
            return costs[width]
        for (below, low), (above, high) in pairwise(costs.items()):
            if below < width < above:
                return low + (high - low) * (width - below) / (above - below)
        *others, (widest, milliseconds) = costs.items()
        below, low = others[-1] if others else (0, 0.0)
        row = max(0.0, milliseconds - low) / (widest - below)
        return milliseconds + row * (width - widest)

    def relative(self, width: int) -> float:
        """Cost of a pass over `width` rows relative to one row; see `cost`."""
        return self.cost(width) / self.cost(1)

    def at(self, context: int) -> CostCurve:
        """The points of the nearest measured context only."""
        return self if len(self.contexts) == 1 else self._parts[self._nearest(context)]

    def coarse(self, widest: int) -> CostCurve:
        """The same without widths above `widest`, >= 1, and with the least alone of those that differ
        by less than an eighth: a session that has seen hundreds knows no more by all of them."""
        least: dict[int, int] = {}
        for width in self.widths:
            rest = max(0, width.bit_length() - 4)  # bits beyond the four highest
            least.setdefault(width >> rest << rest, width)
        kept = {width for width in least.values() if width <= widest}
        if len(kept) == len(self.widths):
            return self
        return CostCurve(tuple(point for point in self.points if point.width in kept))

    def shared_by(self, texts: int) -> CostCurve:
        """What a pass over this many texts costs each of them: its share of a pass of width 1, plus
        the full extra cost of further rows, which are its own."""
        if texts == 1:
            return self
        points = []
        for point in self.points:
            plain = self._costs[point.context][1]
            more = max(0.0, point.milliseconds - plain)
            points.append(replace(point, milliseconds=plain / texts + more))
        return CostCurve(tuple(points))

    def widest(self, extra: float) -> int:
        """The largest measured width that costs at most (1 + extra) times as much as one row.

        A narrower one may cost more: costs are not monotone, and a tree can be filled up to a
        cheap width. At least 1.
        """
        costs = self._costs[self.contexts[0]]
        limit = (1 + extra) * costs[1]
        return max((width for width, cost in costs.items() if cost <= limit), default=1)

    def to_records(self) -> list[dict[str, Any]]:
        """[{"width", "context", "milliseconds"}, …], ready for `json.dumps`."""
        return [asdict(point) for point in self.points]

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> CostCurve:
        """The curve of such records. Raises ValueError if they are malformed."""
        try:
            points = [
                CostPoint(int(each["width"]), int(each["context"]), float(each["milliseconds"]))
                for each in records
            ]
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"these are not the records of a cost curve: {error!r}") from error
        for point in points:
            if point.width > _WIDEST or not _LEAST <= point.milliseconds <= _MOST:
                raise ValueError(f"{point} was never measured")
        return cls(tuple(points))

    def _nearest(self, context: int | None) -> int:
        known = self.contexts
        return known[0] if context is None else min(known, key=lambda one: abs(one - context))


MILD = CostCurve((CostPoint(1, 0, 1.0), CostPoint(101, 0, 2.0)))
"""Stands in for an unmeasured curve: another row costs one per cent of a pass."""

Costs = Callable[[int], CostCurve | None]
"""Tokens in the cache -> current pass costs at that context; None if unknown."""


class LiveCosts:
    """Pass costs at the length of a text: as observed or, until then, as stored.

    costs: observed, as in `Host`. stored: measured before. None if there are none.

    curve: as last looked up; at first all that is stored. share: milliseconds of plain decoding for
    one text among those of a pass; None before it was observed.
    """

    def __init__(self, costs: Costs | None = None, stored: CostCurve | None = None) -> None:
        self._observed, self._stored = costs, stored
        self._rounds = 0
        self.curve = stored
        self.share: float | None = None

    def look(self, context: int) -> bool:
        """Record a round after which the text has `context` tokens in the cache; returns whether
        costs were looked up: in the first and every sixteenth after it, as a curve takes long."""
        self._rounds += 1
        if self._rounds % _LOOK != 1:
            return False
        live = None if self._observed is None else self._observed(context)
        self.share = None if live is None else live.cost(1)
        self.curve = live or (None if self._stored is None else self._stored.at(context))
        return True
