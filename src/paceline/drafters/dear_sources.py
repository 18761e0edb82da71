"""Which sources that take time are asked beside those that take none, see `Auto`.

A dear source is worth the tokens that nobody else would have brought, times what a token takes as
things are, less its own time and that of its rows. How many these are depends on how sure the
others are already: behind a long copy there is little to add, where nothing is known much. So there
is a gate for each source and class of sureness, and behind these one for each source over all
classes, from which a class that is new inherits.

Sources are tried one after the other: two that guess alike would each seem to add nothing. Trials
of those that rest are paid from a purse of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from paceline.planning.adaptive_tree import MILD, Costs
from paceline.planning.cost_curve import CostCurve
from paceline.planning.gate import TRIAL, Gate, Purse
from paceline.planning.running_time import RunningTime

__all__ = ["DearSources"]

_SURENESS = (0.1, 0.5, 1.0, 2.5)
"""Borders between classes: guesses that the others expect to be accepted."""
_ALONE = 4 * TRIAL
"""For so many rounds after a trial has begun no other one begins."""
_LOOK = 16
"""Rounds between two looks at what passes cost."""
_MEMORY = 64
"""Rounds over which it is averaged what a token takes."""


class _Account:
    """One source over all texts.

    time: milliseconds that asking takes. tried: asked at least once. warm: asked since it rested,
    so what it takes is what it takes as a rule.
    """

    def __init__(self) -> None:
        self.purse = Purse()
        self.time = RunningTime()
        self.tried = False
        self.warm = False
        self._judged = 0
        self._gate = Gate(self.purse)
        self._classes: dict[int, Gate] = {}

    def gate(self, sure: float) -> Gate:
        """That of the class of sureness; that of all as long as the source is little known: else
        every class would begin with a trial of its own, of whole passes each."""
        if self._judged < TRIAL:
            return self._gate
        kind = bisect_right(_SURENESS, sure)
        if kind not in self._classes:
            self._classes[kind] = self._gate.heir(lenience=0.0)
        return self._classes[kind]

    def judge(self, sure: float, saved: float) -> None:
        """A round in which the source was asked saved so many passes of plain decoding."""
        self.gate(sure).judge(saved)
        self._judged += 1


class DearSources:
    """What is known about the dear sources of a host, over any number of texts.

    costs, curve: what passes cost, as a host has them.

    With the same rounds, times included, it decides the same.
    """

    def __init__(
        self, names: Iterable[str], costs: Costs | None = None, curve: CostCurve | None = None
    ) -> None:
        self._accounts = {name: _Account() for name in names}
        self._costs, self._stored = costs, curve
        self._curve = MILD
        self._plain = RunningTime()
        self._rounds = 0
        self._alone_until = 0
        # Passes of plain decoding that a round takes, and the tokens that it brings.
        self._passes, self._tokens = 1.0, 1.0

    def asks(self, name: str, sure: float) -> bool:
        """Whether this source is asked now. sure: how many guesses of the others are expected to
        be accepted."""
        account = self._accounts[name]
        gate = account.gate(sure)
        if gate.is_open and account.tried:
            return True
        if self._rounds < self._alone_until or not gate.asks(self._in_passes(account.time.value)):
            return False
        self._alone_until = self._rounds + _ALONE
        account.tried, account.warm = True, False
        return True

    def took(self, name: str, milliseconds: float) -> None:
        """Asking took so long. The first time of a trial may have built something, or read what
        was said meanwhile, and does not count."""
        account = self._accounts[name]
        if account.warm:
            account.time.add(milliseconds)
        account.warm = True

    def judge(self, name: str, sure: float, tokens: int, width: int, own: int) -> None:
        """A round in which the source was asked.

        sure: see `asks`. tokens: accepted, and proposed by nobody else. width: of the pass, of
        which `own` rows were proposed by nobody else.
        """
        account = self._accounts[name]
        rows = self._curve.relative(width) - self._curve.relative(width - own)
        price = self._in_passes(account.time.value) + rows
        account.judge(sure, tokens * self._passes / self._tokens - price)

    def played(self, context: int, width: int, tokens: int, drafting: float, target: float) -> None:
        """A round, after all of its sources were judged.

        context: tokens in the cache. drafting, target: milliseconds.
        """
        relative = self._curve.relative(width)
        self._plain.add(target / relative)
        passes = relative + self._in_passes(drafting)
        self._passes += (passes - self._passes) / _MEMORY
        self._tokens += (tokens - self._tokens) / _MEMORY
        for account in self._accounts.values():
            account.purse.earn(passes / len(self._accounts))
        if self._rounds % _LOOK == 0:
            live = None if self._costs is None else self._costs(context)
            stored = None if self._stored is None else self._stored.at(context)
            self._curve = live or stored or MILD
        self._rounds += 1

    def _in_passes(self, milliseconds: float | None) -> float:
        """A time in passes of plain decoding; 0 as long as one of both is unknown."""
        return (milliseconds or 0.0) / self._plain.value if self._plain.value else 0.0
