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
from copy import copy
from types import MappingProxyType

from paceline.drafters.round_prices import RoundPrices
from paceline.drafters.source_account import CREDIT, PRICE, SourceAccount, SourceInText
from paceline.planning.cost_curve import CostCurve, Costs

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
_LEAST_LEFT = 16
"""Tokens that any text is thought to have left."""
_SLACK, _LOSS = 0.5, 0.015
"""Passes that a text may be behind plain decoding, and besides for each token that it has."""
_MARGIN, _PLANNING = 0.01, 0.12
"""Passes that a round has to save, and milliseconds that a tree of more sources takes to be united,
planned and judged."""
_LOOKUP, _AGAIN = 0.03, 8
"""Tokens that a lookup has to add in a round; one that does not is asked every so many rounds. Times
do not count: they are too short, and with a budget the same text should have the same rounds."""


class CostlySources:
    """What is known about the costly sources of a host: in one text, and, shared by all that
    `for_text` gives, over any number of texts.

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
        self._paying = {
            name: SourceAccount(CREDIT / self._shares, False, promises.get(name, 0.0))
            for name in names
        }
        self._accounts = self._paying | {
            name: SourceAccount(CREDIT / self._shares, lookup=True) for name in lookups
        }
        self._prices = RoundPrices(costs, curve)
        self.begin()

    def for_text(self) -> CostlySources:
        """One for a text that is written beside others: what is learned of all texts is shared."""
        beside = copy(self)
        beside.begin()
        return beside

    def begin(self) -> None:
        """A text begins: texts differ, and one in which a source has shone must not cost others."""
        self._sources = {name: SourceInText(account) for name, account in self._accounts.items()}
        # Tokens, and passes of plain decoding that they have saved.
        self._said, self._saved = 0, 0.0
        self._rounds, self._tried_in = 0, -1

    def asks(self, name: str, sure: float, unread: int = 0, left: float = sys.maxsize) -> bool:
        """Whether this source is asked now.

        sure: how many guesses of the others are expected to be accepted. unread: tokens that the
        source has to read first. left: that the text is expected to have to come, see `left`.
        """
        source = self._sources[name]
        account = source.account
        if account.lookup:
            return source.gain(sure) > 0 or self._rounds % _AGAIN == 0
        spare = self._saved + _SLACK + _LOSS * self._said
        if spare < 0:
            return False
        reading = self._reading(account, unread) if unread > _FEW else 0.0
        price = PRICE if account.time.value is None else self._prices.in_passes(account.time.value)
        gain = source.gain(sure, price, self._prices.each) - _MARGIN
        gain -= self._prices.in_passes(_PLANNING)
        if gain > 0 and (not reading or gain * left / self._prices.tokens > _RETURN * reading):
            source.trial = False
            return True
        # Of two that guess alike each would seem to add nothing, so one is tried at a time.
        if self._tried_in == self._rounds or spare < price + reading:
            return False
        if not account.can_pay(price + reading):
            return False
        if reading and left / self._prices.tokens * max(gain, _HALF * price) < _RETURN * reading:
            return False
        account.pay(reading)
        source.trial, self._tried_in = True, self._rounds
        return True

    def left(self, said: int, room: int) -> float:
        """How many tokens a text is expected to go on for.

        said: how many it has so far. room: how many it may have besides.
        """
        return min(room, max(self._prices.length - said, _LEAST_LEFT))

    def ended(self, tokens: int) -> None:
        """A text has ended with so many."""
        self._prices.length += (tokens - self._prices.length) / 8

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
        source, prices = self._sources[name], self._prices
        expected = source.account.expected(claimed, tokens)
        if source.account.lookup:
            source.judge(sure, 0.0, expected - _LOOKUP)
            return
        # A width may be costlier than a wider one, but no plan would have chosen it without these rows.
        rows = max(0.0, prices.relative(width) - prices.relative(width - own))
        price = prices.in_passes(source.account.time.value) + rows
        source.judge(sure, tokens * prices.each - price, expected * prices.each - price)

    def played(self, context: int, width: int, tokens: int, drafting: float, target: float) -> None:
        """A round, after all of its sources were judged.

        context: tokens in the cache. drafting, target: milliseconds.
        """
        prices = self._prices
        passes = prices.played(context, width, tokens, drafting, target)
        self._said += tokens
        self._saved += tokens - passes
        saves = prices.tokens > (1 + 2 * _LARGE_SHARE) * prices.passes
        earned = passes * (_LARGE_SHARE if saves else _SHARE) / self._shares
        for account in self._paying.values():
            account.earn(earned)
        self._rounds += 1

    def _reading(self, account: SourceAccount, unread: int) -> float:
        """Passes that it takes to read so many tokens, which are not few."""
        each = account.reading.value
        return unread * (_READING if each is None else self._prices.in_passes(each))
