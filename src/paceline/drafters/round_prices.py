"""What rounds and texts of a host take and bring, in passes of plain decoding."""

from __future__ import annotations

from paceline.planning.cost_curve import MILD, CostCurve, Costs
from paceline.planning.running_time import RunningTime

__all__ = ["RoundPrices"]

_LOOK = 16
"""Rounds between two looks at what passes cost."""
_LENGTH = 96.0
"""Tokens of a text as long as none has ended."""
_AVERAGED = 64
"""Rounds over which it is averaged what a token takes."""


class RoundPrices:
    """costs, curve: what passes cost, as a host has them.

    passes, tokens: of plain decoding that a round takes, and that it brings. length: tokens that a
    text is expected to come to.
    """

    def __init__(self, costs: Costs | None = None, curve: CostCurve | None = None) -> None:
        self.passes, self.tokens, self.length = 1.0, 1.0, _LENGTH
        self._costs, self._stored = costs, curve
        self._curve, self._costs_of = MILD, dict[int, float]()
        # Milliseconds of plain decoding for a token: of passes as they were seen; a text's share of
        # them as the planner knows it, who also knows how many are written.
        self._plain = RunningTime()
        self._share: float | None = None
        self._rounds = 0

    @property
    def each(self) -> float:
        """Passes that a token takes; plain decoding has one for a pass, however long rounds take."""
        return min(1.0, self.passes / self.tokens)

    def relative(self, width: int) -> float:
        """What a pass costs, in passes of plain decoding."""
        known = self._costs_of.get(width)
        if known is None:
            known = self._costs_of[width] = self._curve.relative(width)
        return known

    def in_passes(self, milliseconds: float | None) -> float:
        """A time in passes of plain decoding; 0 as long as one of both is unknown."""
        plain = self._share or self._plain.value
        return (milliseconds or 0.0) / plain if plain else 0.0

    def played(
        self, context: int, width: int, tokens: int, drafting: float, target: float
    ) -> float:
        """A round, and the passes that it took; see `CostlySources.played`."""
        relative = self.relative(width)
        self._plain.add(target / relative)
        passes = relative + self.in_passes(drafting)
        self.passes += (passes - self.passes) / _AVERAGED
        self.tokens += (tokens - self.tokens) / _AVERAGED
        if self._rounds % _LOOK == 0:
            self._look(context)
        self._rounds += 1
        return passes

    def _look(self, context: int) -> None:
        live = None if self._costs is None else self._costs(context)
        self._share = None if live is None else live.cost(1)
        stored = None if live or self._stored is None else self._stored.at(context)
        self._curve = live or stored or MILD
        self._costs_of.clear()
