"""Estimates of what passes cost: a stored curve or a mild guess, corrected by every pass.

The logarithm of a pass's time is modelled as the sum of three terms: the shape (from the curve), a
level that all widths share and that drifts, for example as the text grows, and a correction for the
width. A Kalman filter tracks level and corrections, each with its own variance: uncertain terms
move, well-known ones stay. Another text makes the level uncertain. Corrections also drift, slowly,
and more the longer their width was not seen; with a curve they fade meanwhile. They are relative to
plain decoding, whose own is always 0. An outlier moves a term by at most a few standard deviations.
If a width surprises three times in one direction, and the widths before it did not, it is no
outlier: what was known about the width is discarded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from math import exp, log

import numpy as np

from paceline.planning.cost_curve import CostCurve, CostPoint

_ROW = 0.02
"""Without a curve, another row is assumed to cost a fiftieth of a pass."""
_GRID = (1, 4, 8, 16, 32, 64)
"""Widths of the curve that is reported where none was given."""
_NOISE = 0.05**2
_DRIFT = 0.02**2
_FIRST = 0.3**2
_CURVE_DOUBT, _GUESS_DOUBT = 0.05**2, 0.7**2
_CLIP = 2.5
_AGED = 64
"""After this many passes of other widths, a width's correction is as uncertain as a single time;
for a width that is seen all the time, this many new passes outweigh all earlier ones."""
_FADING = 0.5
"""Factor for corrections after as many passes of other widths: what slowed a width down may have
passed, which a planner that avoids the width would never notice."""
_NO_OUTLIER = 3
_UNKNOWN = 1000.0
"""Milliseconds of a pass before one was measured: so many that the time to draft does not count."""
_LOOK = 16
"""Passes between two curves for a text of several: making one takes long."""
_WARM_UP = 0.3
"""The first pass of a width may build what later ones use: it does not count if it is slower than
expected by more than this (as a logarithm)."""


@dataclass
class _Term:
    """One term of the sum, and its uncertainty."""

    value: float
    variance: float
    seen: int = 0
    """Index of the last pass of this width, among passes of all widths."""
    surprises: int = 0
    """Number in a row, negative if the width was faster than expected."""


class PassCosts:
    """Milliseconds of a pass by its width, for passes over a fixed number of texts.

    curve: as measured on this device over one text; None if nothing is known.
    texts: per pass. The width is one plus the nodes of all trees: 1 is plain decoding.
    """

    def __init__(self, curve: CostCurve | None = None, texts: int = 1) -> None:
        self._curve, self._texts = curve, texts
        # For widths 1, 2, …: the shape, without and with corrections, as multiples of the level.
        self._shape: list[float] = []
        self._factors: list[float] = []
        self._level = _Term(log(_UNKNOWN) if curve is None else 0.0, 1.0)
        self._doubt = _GUESS_DOUBT if curve is None else _CURVE_DOUBT
        self._widths: dict[int, _Term] = {1: _Term(0.0, 0.0)}
        self._known = [1]  # widths that have terms, ascending
        self._warmed: set[int] = set()
        self._measured = 0
        self._last, self._calm = 0, True
        # By measured context: what `share` returned last, and the passes before that.
        self._shares: dict[int, tuple[int, CostCurve]] = {}

    @property
    def doubts_plain(self) -> bool:
        """Whether the last pass of plain decoding was a surprise."""
        return self._widths[1].surprises != 0

    def inherited(self, texts: int) -> PassCosts:
        """The costs to expect of passes over another number of texts, before the first of them."""
        made = PassCosts(self._curve, texts)
        made._level = _Term(self._level.value, 1.0)
        made._widths = {
            width: _Term(term.value, made._doubt if width > 1 else 0.0)
            for width, term in self._widths.items()
        }
        made._known = list(self._known)
        return made

    def upto(self, widest: int, beside: int = 0) -> list[float]:
        """Milliseconds [widest] of passes of width 1, 2, …; see `of`."""
        if beside:
            return [self.of(width, beside) for width in range(1, widest + 1)]
        self._extend_to(widest)
        level = exp(self._level.value)
        return [level * factor for factor in self._factors[:widest]]

    def of(self, width: int, beside: int = 0) -> float:
        """Milliseconds of a pass of this width, at least 1.

        beside: prompt rows read in the same pass. Their own cost is left out; that another row
        costs more among many is not.
        """
        self._extend_to(width + beside)
        level = exp(self._level.value)
        if not beside:
            return level * self._factors[width - 1]
        more = self._factors[width + beside - 1] - self._factors[beside]
        return level * (self._factors[0] + max(0.0, more))

    def curve(self, context: int) -> CostCurve | None:
        """Current costs by width for a text with `context` tokens in the cache; None before the
        first pass. Measured widths cost what they do in `of`; the stored curve at this context is
        the shape between and beyond them."""
        if not self._measured:
            return None
        shape = self._curve and self._curve.at(context)
        widths = sorted({*self._widths, *(shape.widths if shape else _GRID)})
        expected = {width: self._expected(width, shape) for width in widths}
        self._extend_to(widths[-1])
        known = [
            self._widths[width].value + log(self._shape[width - 1] / expected[width])
            for width in self._known
        ]
        level, corrections = self._level.value, np.interp(widths, self._known, known).tolist()
        costs = [expected[width] * exp(level + more) for width, more in zip(widths, corrections)]
        return CostCurve(tuple(CostPoint(n, context, cost) for n, cost in zip(widths, costs)))

    def share(self, context: int) -> CostCurve | None:
        """What a pass costs one of its texts; else like `curve`, but up to sixteen passes old."""
        near = self._curve.at(context).contexts[0] if self._curve else 0
        made_after, share = self._shares.get(near, (0, None))
        if share is not None and self._measured < made_after + _LOOK:
            return share
        curve = self.curve(context)
        if curve is not None:
            curve = curve.shared_by(self._texts)
            self._shares[near] = self._measured, curve
        return curve

    def expect_change(self, share: float = 1.0) -> None:
        """Expect other times from now on, at all widths alike. share: of the texts that are new."""
        self._level.variance = max(self._level.variance, _FIRST * share**2)

    def observe(self, width: int, milliseconds: float) -> None:
        """Record the time of a pass."""
        if milliseconds <= 0:
            return  # a clock that did not advance tells nothing
        self._measured += 1
        first = width not in self._warmed
        self._warmed.add(width)
        error = log(milliseconds) - log(self.of(width))
        level = self._level
        if self._measured == 1:
            level.value, level.variance = level.value + error, _FIRST
            return
        if first and error > _WARM_UP:
            return
        if width not in self._widths:
            # More rows than any pass that was measured beforehand, or not.
            beyond = self._curve is not None and width - 1 + self._texts > self._curve.widths[-1]
            doubt = _GUESS_DOUBT if beyond else self._doubt
            self._widths[width] = _Term(self._correction(width), doubt, self._measured)
            insort(self._known, width)
        own = self._widths[width]
        level.variance += _DRIFT
        own.variance += _NOISE * min(1.0, (self._measured - own.seen) / _AGED) ** 2
        own.seen = self._measured
        self._suspect(width, own, error, level.variance + own.variance + _NOISE)
        total = level.variance + own.variance + _NOISE
        step = max(-_CLIP, min(_CLIP, error / total**0.5)) * total**0.5 / total
        level.value += level.variance * step
        own.value += own.variance * step
        level.variance -= level.variance**2 / total
        own.variance -= own.variance**2 / total
        if width == 1:
            self._make_relative()
        if self._curve is not None and self._measured % _AGED == 0:
            self._fade()
        self._correct_factors(width)

    def _make_relative(self) -> None:
        """Move the correction of plain decoding into the level; no estimate changes."""
        offset = self._widths[1].value
        self._level.value += offset
        for term in self._widths.values():
            term.value -= offset
        self._factors.clear()

    def _correct_factors(self, width: int) -> None:
        """Update factors after a width's correction has changed: up to its known neighbours."""
        place, known = bisect_left(self._known, width), self._known
        begin = known[max(0, place - 1)]
        end = known[place + 1] if place + 1 < len(known) else len(self._factors) + 1
        for between in range(begin, min(end, len(self._factors) + 1)):
            self._factors[between - 1] = self._factor(between)

    def _factor(self, width: int) -> float:
        return self._shape[width - 1] * exp(self._correction(width))

    def _fade(self) -> None:
        for width, term in self._widths.items():
            if width > 1 and self._measured - term.seen >= _AGED:
                term.value *= _FADING
        self._factors.clear()

    def _suspect(self, width: int, own: _Term, error: float, variance: float) -> None:
        """Count surprises of a width; the third one in a row discards what was known about it. If
        all widths surprise, the level has changed."""
        calm = abs(error) <= _CLIP * variance**0.5
        sign = 1 if error > 0 else -1
        if calm:
            own.surprises = 0
        elif own.surprises * sign > 0:
            own.surprises += sign
        else:
            own.surprises = sign if self._calm and self._last != width else 0
        if abs(own.surprises) >= _NO_OUTLIER:
            own.variance += error**2
            own.surprises = 0
        self._last, self._calm = width, calm

    def _correction(self, width: int) -> float:
        """The width's correction, interpolated between known ones."""
        place = bisect_right(self._known, width)
        below = self._known[place - 1]
        low = self._widths[below].value
        if below == width or place == len(self._known):
            return low
        above = self._known[place]
        return low + (self._widths[above].value - low) * (width - below) / (above - below)

    def _extend_to(self, widest: int) -> None:
        """Compute factors up to this width."""
        for width in range(len(self._shape) + 1, widest + 1):
            self._shape.append(self._expected(width, self._curve))
        for width in range(len(self._factors) + 1, widest + 1):
            self._factors.append(self._factor(width))

    def _expected(self, width: int, shape: CostCurve | None) -> float:
        rows = width - 1 + self._texts
        return 1 + _ROW * (rows - 1) if shape is None else shape.cost(rows)
