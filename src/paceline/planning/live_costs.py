"""What passes cost at present, for drafters that look it up now and then."""

from __future__ import annotations

from paceline.planning.cost_curve import CostCurve, Costs

_LOOK = 16


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
