"""Which sources are asked in addition to the first lookup, see `Auto`.

A costly source is worth the tokens that no other would have brought, times what a token costs in
this text, less its own time and that of its rows. How many tokens depends on the confidence of the
others: after a long copy there is little to add; where nothing is known, much. So yield and time of
asking are recorded by source and class of confidence. A new class starts from this text's mean over
all classes, a new text from the mean over all texts. After some rounds without the source a long
time counts as unknown, since the machine may have been busy. What parts promise is believed in
part, as if some rounds had shown it.

A source that has saved time is asked. Any other is asked on trial, round by round, from a budget of
its own: what a trial loses is taken out, what it saves goes in. So a useful source pays for its own
trials, and a useless one costs no more than the budget receives, a small share of all time. Each
trial that saves nothing also doubles the rounds until the next one in its class. What a source must
read first in this text is paid for, too, before it is asked, and only if the text is expected to
continue for long enough. Later rounds are judged without that time.

No costly source is asked in a text whose rounds have been slower than plain decoding by more than a
small share, whatever it promises: others must win back that loss first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from types import MappingProxyType

from paceline.drafters.round_prices import RoundPrices
from paceline.drafters.source_account import CREDIT, PRICE, SourceAccount, SourceInText, class_of
from paceline.planning.cost_curve import CostCurve, Costs

_SHARE, _LARGE_SHARE = 0.01, 0.02
"""Shares of all time for the budgets; the large one while drafting saves over twice that."""
_READING = 0.01  # passes to read a token, while unknown
_FEW, _MANY = 4, 32
"""Most unread tokens that are read along with what is read anyway, and the fewest whose time shows
what reading costs."""
_RETURN, _HALF = 1.5, 0.5
"""Reading has to return this many times its cost. A source that has saved nothing yet is expected
to save half the price of asking."""
_LEAST_LEFT = 16  # tokens that any text is assumed to have left
_USUAL_ROUNDS = 8
"""Rounds as in other texts that stand before a text's own, for what they cost and yield."""
_SLACK, _LOSS = 0.5, 0.015
"""Passes that a text may lag plain decoding: in any case, and more for each token it has."""
_MARGIN, _PLANNING = 0.01, 0.12
"""Passes that a round has to save, and milliseconds to unite, plan and judge a tree of more
sources."""
_PAUSE = 4.0
"""Most passes that drafting takes beside the usual time of asking: more is a pause of the machine,
no loss that a text has to win back in hundreds of tokens."""
_LOOKUP, _AGAIN = 0.03, 8
"""Tokens that a lookup has to add in a round, and the rounds after which one that does not is asked
again. Times do not count: they are too short, and with a fixed budget the same text should have the
same rounds."""


class CostlySources:
    """What is known about the costly sources of a host: in one text and, shared by all copies from
    `for_text`, over any number of texts.

    names: of these sources. lookups: names of cheap ones, asked until they prove to add nothing to
    those asked before them. promises: see `Drafter.promise`, by name. costs, curve: pass costs, as
    in `Host`.

    The same rounds, times included, lead to the same decisions.
    """

    def __init__(
        self,
        names: Sequence[str],
        lookups: Sequence[str] = (),
        costs: Costs | None = None,
        curve: CostCurve | None = None,
        promises: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
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
        """A copy for a text beside others; what is learned over all texts is shared."""
        beside = copy(self)
        beside.begin()
        return beside

    def begin(self) -> None:
        """Begin a text. Texts differ: one in which a source has shone must not cost the others."""
        self._sources = {name: SourceInText(account) for name, account in self._accounts.items()}
        # Tokens, and passes of plain decoding that they have saved.
        self._said, self._saved = 0, 0.0
        self._rounds, self._tried_in = 0, -1
        # Milliseconds of this round: those that later ones are judged without, and those of asking,
        # without outliers.
        self._once, self._asking = 0.0, 0.0

    def asks(self, name: str, sure: float, unread: int = 0, left: float = sys.maxsize) -> bool:
        """Whether this source is asked now. sure: guesses of the others that are expected to be
        accepted. unread: tokens that the source has to read first. left: tokens that the text is
        expected to gain, see `left`."""
        source = self._sources[name]
        account, place = source.account, class_of(sure)
        if account.lookup:
            return source.gain(place) > 0 or self._rounds % _AGAIN == 0
        source.seen[place] += 1
        spare = self._saved + _SLACK + _LOSS * self._said
        if spare < 0:
            return False
        reading = self._reading(account, unread) if unread > _FEW else 0.0
        gain, price = self._gain(source, place)
        if gain > 0 and self._returns(source, reading, left):
            source.trial = False
            return True
        # Two that guess alike would each seem to add nothing, so one is tried at a time.
        if self._tried_in == self._rounds or spare < price + reading:
            return False
        if not account.can_pay(price + reading) or not account.may_try(place):
            return False
        if not self._returns(source, reading, left, _HALF * price):
            return False
        account.pay(reading)
        source.trial, self._tried_in = True, self._rounds
        return True

    def _returns(
        self, source: SourceInText, reading: float, left: float, least: float = 0.0
    ) -> bool:
        """Whether the rest of the text returns the cost of reading, in passes. left: see `asks`.
        least: what a round is expected to save at least."""
        if not reading:
            return True
        usual = source.usual(lambda place: self._gain(source, place)[0])
        said = self._said + _USUAL_ROUNDS * self._prices.pace
        rounds = left * (self._rounds + _USUAL_ROUNDS) / said
        return rounds * max(usual, least) >= _RETURN * reading

    @property
    def _each(self) -> float:
        """Passes for a token in this text; at most one, its cost in plain decoding, however long
        rounds take."""
        usual = _USUAL_ROUNDS * self._prices.pace
        passes = usual * self._prices.each + self._said - self._saved
        return min(1.0, passes / (usual + self._said))

    def left(self, said: int, room: int) -> float:
        """How many more tokens a text is expected to have.

        said: tokens so far. room: most that may follow.
        """
        return min(room, max(self._prices.length - said, _LEAST_LEFT))

    def ended(self, length: int) -> None:
        """Record that a text has ended with this many tokens."""
        self._prices.ended(length, self._rounds, self._said, self._said - self._saved)
        for source in self._sources.values():
            source.ended()

    def took(self, name: str, milliseconds: float, unread: int = 0, sure: float = 0.0) -> None:
        """Record the time of asking. unread, sure: see `asks`."""
        account, source = self._accounts[name], self._sources[name]
        place = class_of(sure)
        if unread <= _FEW:
            bounded = account.times.bounded(milliseconds, place)
            if account.took(milliseconds, place):
                source.taken = bounded
                source.times.add(bounded, place)
                self._asking += bounded
            else:
                self._once += milliseconds
            return
        self._asking += milliseconds
        reading = max(0.0, milliseconds - (account.times.of(place) or 0.0))
        if not account.begins() and unread >= _MANY and reading:
            account.reading.add(reading / unread)
        if not source.has_read:  # what it missed while it was not asked counts like any time
            source.has_read = True
            self._once += reading

    def judge(
        self, name: str, sure: float, tokens: int, claimed: float, width: int, own: int
    ) -> None:
        """Record a round in which the source was asked.

        sure: see `asks`. tokens: accepted only because of this source; claimed: how many these
        should be by the tree's weights. width: of the pass; own: its rows that were there only
        because of this source.
        """
        source, prices, place = self._sources[name], self._prices, class_of(sure)
        expected = source.account.expected(claimed, tokens)
        if source.account.lookup:
            source.judge(place, 0.0, expected - _LOOKUP)
            return
        # A narrower pass may cost more than a wider one, but no plan would have chosen it.
        rows = max(0.0, prices.relative(width) - prices.relative(width - own))
        price, spent = self._price(source, place), prices.in_passes(source.taken)
        spent, source.taken = price if spent is None else spent, None
        each = self._each
        source.judge(place, tokens * each - spent - rows, expected * each - rows, price)

    def played(
        self, context: int, width: int, tokens: int, drafting: float, target: float | None
    ) -> None:
        """Record a round, after all its sources were judged.

        context: tokens in the cache. drafting, target: milliseconds; target is None if the pass
        also read a prompt, so that its time says nothing about this round.
        """
        prices, drafting = self._prices, max(0.0, drafting - self._once)
        if prices.plain is not None:
            drafting = min(drafting, self._asking + _PAUSE * prices.plain)
        self._once = self._asking = 0.0
        passes = prices.played(context, width, tokens, drafting, target)
        self._said += tokens
        self._saved += tokens - passes
        saves = prices.tokens > (1 + 2 * _LARGE_SHARE) * prices.passes
        earned = passes * (_LARGE_SHARE if saves else _SHARE) / self._shares
        for account in self._paying.values():
            account.earn(earned)
            account.rest()
        self._rounds += 1

    def skipped(self) -> None:
        """Leave out a round, whose times say nothing."""
        self._once = self._asking = 0.0

    def _gain(self, source: SourceInText, place: int) -> tuple[float, float]:
        """Passes that asking saves at a class of confidence, beyond what a round has to save, and
        those that it costs."""
        price = self._price(source, place)
        least = _MARGIN + (self._prices.in_passes(_PLANNING) or 0.0)
        return source.gain(place, price, self._each) - least, price

    def _price(self, source: SourceInText, place: int) -> float:
        """Passes that asking costs. A text in which drafts end at once does not pay for long ones
        in others."""
        all_texts, here = (
            self._prices.in_passes(times.of(place))
            for times in (source.account.times, source.times)
        )
        usual = source.account.believed(all_texts, PRICE)
        return usual if here is None else source.times.instead_of(usual, here, place)

    def _reading(self, account: SourceAccount, unread: int) -> float:
        """Passes to read `unread` tokens, more than a few."""
        known = self._prices.in_passes(account.reading.value)
        return unread * account.believed(known, _READING)
