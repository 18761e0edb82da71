"""What rounds of a host cost and yield, in passes of plain decoding."""

from __future__ import annotations

from paceline.planning.cost_curve import MILD, CostCurve, Costs, LiveCosts
from paceline.planning.running_time import RunningTime

_LENGTH, _PACE = 96.0, 1.5  # expected tokens of a text, and of a round in it, until one has ended
_TEXTS = 8  # texts over which these are averaged
_AVERAGED = 64  # rounds over which the cost and yield of one are averaged


class RoundPrices:
    """Running averages over rounds.

    costs, curve: pass costs, as in `Host`.

    passes: of plain decoding, that a round costs. tokens: that it yields. length, pace, each:
    expected tokens of a text, and of a round in a text, and passes for a token, where every text
    counts alike: one that repeats itself says little about the next.
    """

    def __init__(self, costs: Costs | None = None, curve: CostCurve | None = None) -> None:
        self.passes, self.tokens = 1.0, 1.0
        self.length, self.pace, self.each = _LENGTH, _PACE, 1.0
        self._live = LiveCosts(costs, curve)
        self._curve, self._costs_of = MILD, dict[int, float]()
        # Milliseconds of plain decoding for a token, by the passes seen. A text's share is known to
        # the planner, which also knows how many texts are being written.
        self._plain = RunningTime()

    def relative(self, width: int) -> float:
        """The cost of a pass, in passes of plain decoding."""
        known = self._costs_of.get(width)
        if known is None:
            known = self._costs_of[width] = self._curve.relative(width)
        return known

    @property
    def plain(self) -> float | None:
        """Milliseconds of plain decoding for a token; None while unknown."""
        return self._live.share or self._plain.value

    def in_passes(self, milliseconds: float | None) -> float | None:
        """A time in passes of plain decoding; None while either is unknown."""
        plain = self.plain
        return milliseconds / plain if plain and milliseconds is not None else None

    def played(
        self, context: int, width: int, tokens: int, drafting: float, target: float | None
    ) -> float:
        """Record a round; returns the passes that it took, which are expected rather than measured:
        the pass may have served others, too. See `CostlySources.played`."""
        relative = self.relative(width)
        if target is not None:
            self._plain.add(target / relative)
        passes = relative + (self.in_passes(drafting) or 0.0)
        self.passes += (passes - self.passes) / _AVERAGED
        self.tokens += (tokens - self.tokens) / _AVERAGED
        if self._live.look(context) and (curve := self._live.curve or MILD) is not self._curve:
            self._curve = curve  # other texts often find the same
            self._costs_of.clear()
        return passes

    def ended(self, length: int, rounds: int, tokens: int, passes: float) -> None:
        """Record a text. length: its tokens. rounds: that were played; tokens, passes: of these."""
        self.length += (length - self.length) / _TEXTS
        if rounds:
            self.pace += (tokens / rounds - self.pace) / _TEXTS
            self.each += (passes / tokens - self.each) / _TEXTS
