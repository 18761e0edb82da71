"""Which sources are asked beside the first lookup, see `Auto`.

A costly source is worth the tokens that nobody else would have brought, times what a token takes as
things are, less its own time and that of its rows. How many these are depends on how sure the
others are already: after a long copy there is little to add, where nothing is known much. So what
asking has saved is counted by source and class of sureness, in this text over all classes, from
which a class that is new begins, and in all texts, from which a text begins. Parts that say how
often their guesses were right when they were made are believed in part, as if some rounds had shown
it: a source that deserves to be asked from the first round on need not wait for its trials.

A source that has saved time is asked. Any other one is asked on trial, round by round, from a budget
that every source has: what such a round loses is taken out, what it saves goes in, so a source that
begins to be of use pays for its own trials, and one that is of none costs no more than the budget
gets, a small share of all time. What a source has to read first in this text is paid as well,
before it is asked, and only where the text is expected to go on for long enough.

No costly source is asked in a text that is behind plain decoding by more than a small share of it,
whatever it promises: what was lost there is to be won back by others first.

Of lookups, which take next to no time, only the tokens count.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from paceline.drafters.source_account import CREDIT, PRICE, SourceAccount
from paceline.planning.cost_curve import MILD, CostCurve, Costs
from paceline.planning.running_time import RunningTime

__all__ = ["CostlySources"]

_SHARE, _LARGE_SHARE = 0.01, 0.02
"""Of all time, for the budgets; the large one while drafting saves more than that."""
_READING = 0.02
"""Passes that reading a token takes, as long as nobody knows."""
_FEW = 4
"""So many unread tokens are read with what is read anyway."""
_RETURN, _HALF = 2.0, 0.5
"""Reading has to bring so many times what it takes; of a source that has saved nothing yet half of
what asking takes is hoped for."""
_LENGTH, _LEAST_LEFT = 96, 16
"""Tokens of a text as long as none has ended, and that any text is thought to have left."""
_SLACK, _LOSS = 0.5, 0.015
"""Passes that a text may be behind plain decoding, and besides for each token that it has."""
_MARGIN, _PLANNING = 0.01, 0.12
"""Passes that a round has to save, and milliseconds that a tree of more sources takes to be united,
planned and judged."""
_LOOKUP, _AGAIN = 0.03, 8
"""Tokens that a lookup has to add in a round; one that does not is asked every so many rounds. Times
do not count: they are too short, and with a budget the same text should have the same rounds."""
_LOOK = 16
"""Rounds between two looks at what passes cost."""
_AVERAGED = 64
"""Rounds over which it is averaged what a token takes."""


class CostlySources:
    """What is known about the costly sources of a host, over any number of texts.

    lookups: names of sources that take little, and are asked until they have shown to add nothing
    to what those say that were asked before them. promises: see `Drafter.promise`, by name.
    costs, curve: what passes cost, as a host has them.

    With the same rounds, times included, it decides the same.
    """

    def __init__(
        self,
        names: Iterable[str],
        lookups: Iterable[str] = (),
        costs: Costs | None = None,
        curve: CostCurve | None = None,
        promises: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        names = tuple(names)
        self._shares = max(1, len(names))
        self._accounts = {
            name: SourceAccount(CREDIT / self._shares, False, promises.get(name, 0.0))
            for name in names
        }
        self._paying = tuple(self._accounts.values())
        self._accounts |= {
            name: SourceAccount(CREDIT / self._shares, lookup=True) for name in lookups
        }
        self._costs, self._stored = costs, curve
        self._curve, self._costs_of = MILD, dict[int, float]()
        # Milliseconds of plain decoding for a token: of passes as they were seen; a text's share of
        # them as the planner knows it, who also knows how many are written.
        self._plain = RunningTime()
        self._share: float | None = None
        self._rounds, self._tried_in = 0, -1
        # Passes of plain decoding that a round takes, the tokens that it brings and those of a text.
        self._passes, self._tokens = 1.0, 1.0
        self._length = float(_LENGTH)
        # In this text: tokens, and passes of plain decoding that they have saved.
        self._said, self._saved = 0, 0.0

    def asks(self, name: str, sure: float, unread: int = 0, left: float = sys.maxsize) -> bool:
        """Whether this source is asked now.

        sure: how many guesses of the others are expected to be accepted. unread: tokens that the
        source has to read first. left: that the text is expected to have to come, see `left`.
        """
        account = self._accounts[name]
        if account.lookup:
            return account.gain(sure) > 0 or self._rounds % _AGAIN == 0
        spare = self._saved + _SLACK + _LOSS * self._said
        if spare < 0:
            return False
        reading = self._reading(account, unread) if unread > _FEW else 0.0
        price = PRICE if account.time.value is None else self._in_passes(account.time.value)
        gain = account.gain(sure, price, self._each) - _MARGIN - self._in_passes(_PLANNING)
        if gain > 0 and (not reading or gain * left / self._tokens > _RETURN * reading):
            account.trial = False
            return True
        # Of two that guess alike each would seem to add nothing, so one is tried at a time.
        if self._tried_in == self._rounds or spare < price + reading:
            return False
        if not account.can_pay(price + reading):
            return False
        if reading and left / self._tokens * max(gain, _HALF * price) < _RETURN * reading:
            return False
        account.pay(reading)
        account.trial, self._tried_in = True, self._rounds
        return True

    def begin(self) -> None:
        """A text begins: texts differ, and one in which a source has shone must not cost others."""
        self._said, self._saved = 0, 0.0
        for account in self._accounts.values():
            account.begin()

    def left(self, said: int, room: int) -> float:
        """How many tokens a text is expected to go on for.

        said: how many it has so far. room: how many it may have besides.
        """
        return min(room, max(self._length - said, _LEAST_LEFT))

    def ended(self, tokens: int) -> None:
        """A text has ended with so many."""
        self._length += (tokens - self._length) / 8

    def took(self, name: str, milliseconds: float, unread: int = 0) -> None:
        """Asking took so long, with so many tokens to be read first."""
        account = self._accounts[name]
        if unread <= _FEW:
            account.time.add(milliseconds)
        else:
            account.reading.add(max(0.0, milliseconds - (account.time.value or 0.0)) / unread)

    def judge(
        self, name: str, sure: float, tokens: int, claimed: float, width: int, own: int
    ) -> None:
        """A round in which the source was asked.

        sure: see `asks`. tokens: accepted, and there only because of this source; claimed: how many
        these were to be by the weights of the tree. width: of the pass, of which `own` rows were
        there only because of this source.
        """
        account = self._accounts[name]
        if account.lookup:
            account.judge(sure, 0.0, account.expected(claimed, tokens) - _LOOKUP)
            return
        # A width may be costlier than a wider one, but no plan would have chosen it without these rows.
        rows = max(0.0, self._relative(width) - self._relative(width - own))
        price = self._in_passes(account.time.value) + rows
        each, expected = self._each, account.expected(claimed, tokens)
        account.judge(sure, tokens * each - price, expected * each - price)

    def played(self, context: int, width: int, tokens: int, drafting: float, target: float) -> None:
        """A round, after all of its sources were judged.

        context: tokens in the cache. drafting, target: milliseconds.
        """
        relative = self._relative(width)
        self._plain.add(target / relative)
        passes = relative + self._in_passes(drafting)
        self._said += tokens
        self._saved += tokens - passes
        self._passes += (passes - self._passes) / _AVERAGED
        self._tokens += (tokens - self._tokens) / _AVERAGED
        saves = self._tokens > (1 + 2 * _LARGE_SHARE) * self._passes
        earned = passes * (_LARGE_SHARE if saves else _SHARE) / self._shares
        for account in self._paying:
            account.earn(earned)
        if self._rounds % _LOOK == 0:
            live = None if self._costs is None else self._costs(context)
            self._share = None if live is None else live.cost(1)
            stored = None if live or self._stored is None else self._stored.at(context)
            self._curve = live or stored or MILD
            self._costs_of.clear()
        self._rounds += 1

    @property
    def _each(self) -> float:
        """Passes that a token takes; plain decoding has one for a pass, however long rounds take."""
        return min(1.0, self._passes / self._tokens)

    def _relative(self, width: int) -> float:
        """What a pass costs, in passes of plain decoding."""
        known = self._costs_of.get(width)
        if known is None:
            known = self._costs_of[width] = self._curve.relative(width)
        return known

    def _reading(self, account: SourceAccount, unread: int) -> float:
        """Passes that it takes to read so many tokens, which are not few."""
        each = account.reading.value
        return unread * (_READING if each is None else self._in_passes(each))

    def _in_passes(self, milliseconds: float | None) -> float:
        """A time in passes of plain decoding; 0 as long as one of both is unknown."""
        plain = self._share or self._plain.value
        return (milliseconds or 0.0) / plain if plain else 0.0
