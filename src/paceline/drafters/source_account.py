"""What is known about one source of `auto`, see `paceline.drafters.costly_sources`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from paceline.planning.gate import Gain
from paceline.planning.running_time import FIRST_TIMES, RunningTime

PRICE = 0.25
"""Passes that asking costs, while unknown."""
_HOPE = 0.1  # tokens that a lookup is assumed to add before anything is known
_SURENESS = (0.1, 0.5, 1.0, 2.5)  # borders between classes of confidence, see `class_of`
CLASSES = 1 + len(_SURENESS)
_TRUST, _SHOWN = 0.6, 2
"""Share of its measured promise that a source is assumed to add, and the rounds that this counts
as."""
CREDIT = 1.0
"""Passes of plain decoding that all budgets together hold at first, and the most that one keeps,
unless it saves for something more expensive."""
_MOST, _DOUBT = 0.1, 4
"""Most passes that asking is expected to save in a new text, and the rounds that this counts as."""
_MEMORY, _LONG_MEMORY = 24, 128
_BELIEVED = 16  # claimed tokens that show how far a source's claims are to be believed
_TEXTS = 8  # texts over which the shares of classes are averaged
_MOST_FAILED = 8  # failed trials that still double the rounds until the next one
_USUAL_TIMES = 2  # times in a text that count as much as the usual time, during the first few
_USUAL_ROUNDS = 8  # rounds of a text, with what was usual before it, that show which classes it has
_RESTED = 32  # rounds without the source after which its time counts as unknown if it was long


class AskingTimes:
    """Milliseconds of asking, by class of confidence: drafts differ in length, and much is known
    already of a text that others are sure about."""

    def __init__(self) -> None:
        self._all = RunningTime()
        self._by_class: dict[int, RunningTime] = {}

    def bounded(self, milliseconds: float, place: int) -> float:
        """See `RunningTime.bounded`."""
        return self._of(place).bounded(milliseconds)

    def add(self, milliseconds: float, place: int) -> None:
        """Record the time of asking at a class of confidence."""
        self._all.add(milliseconds)
        self._by_class.setdefault(place, RunningTime()).add(milliseconds)

    def learn_anew(self) -> None:
        """See `RunningTime.learn_anew`."""
        self._all.learn_anew()
        for each in self._by_class.values():
            each.learn_anew()

    def of(self, place: int) -> float | None:
        """The time at a class of confidence; that over all classes while it is not known."""
        return self._of(place).value

    def instead_of(self, usual: float, here: float, place: int) -> float:
        """`here`, which these times came to, as far as they are enough to replace what is usual:
        one long draft does not make a text one of long drafts."""
        count = self._of(place).count
        share = 1.0 if count >= FIRST_TIMES else count / (count + _USUAL_TIMES)
        return usual + (here - usual) * share

    def _of(self, place: int) -> RunningTime:
        return self._by_class.get(place, self._all)


def class_of(sure: float) -> int:
    """The class of confidence of others that expect so many of their guesses to be accepted."""
    return bisect_right(_SURENESS, sure)


class SourceAccount:
    """One source over all texts. Times in milliseconds, all else in passes of plain decoding.

    reading: of a token that the source has to read first. lookup: it is so cheap that it is assumed
    useful until it proves otherwise. promise: tokens that it was measured to add in a round; 0 if
    unknown.

    What classes yield is recorded without the time that asking takes: that changes with the
    machine.
    """

    def __init__(self, credit: float, lookup: bool, promise: float = 0.0) -> None:
        self.times = AskingTimes()
        self.reading = RunningTime()
        self.lookup, self.promise = lookup, promise
        self._rested, self._asked = 0, False
        self._budget, self._room = credit, CREDIT
        self._gain = Gain(_LONG_MEMORY)
        if lookup:
            self._gain.expect(_HOPE, 0)
        self._known: dict[int, Gain] = {}  # by class, if something was promised
        # By class: failed trials since one saved something, and rounds until the next one.
        self._failed, self._waits = [0] * CLASSES, [0] * CLASSES
        self.shares = [0.0] * CLASSES  # of each class in texts that have ended
        self._claimed, self._right = 0.0, 0.0

    def ended(self, shares: Sequence[float]) -> None:
        """Record the share of each class in a text; all texts count alike."""
        weight = 1 / _TEXTS if any(self.shares) else 1.0
        both = zip(self.shares, shares, strict=True)
        self.shares = [known + (own - known) * weight for known, own in both]

    def took(self, milliseconds: float, place: int) -> bool:
        """Record the time of asking at a class; returns whether it counts, see `begins`."""
        self._rested = 0
        if self.begins():
            return False
        self.times.add(milliseconds, place)
        return True

    def begins(self) -> bool:
        """Whether it is asked for the first time: then it also makes what is kept for later, and
        finds nothing in the processor's caches."""
        first, self._asked = not self._asked, True
        return first

    def rest(self) -> None:
        """Record a round without the source."""
        self._rested += 1
        if self._rested == _RESTED:
            self.times.learn_anew()

    def believed(self, known: float | None, usual: float) -> float:
        """A time in passes. known: as recorded; None if unknown. usual: of sources in general."""
        if known is None:
            return usual
        return min(known, usual) if self._rested >= _RESTED else known

    @property
    def likely_gain(self) -> float:
        """What asking is expected to save in a new text."""
        if self.promise:
            return 0.0
        gain = min(_MOST, self._gain.mean / 2)
        return max(0.0, gain) if self._rested >= _RESTED else gain

    def promised(self, place: int, each: float) -> float:
        """What a class has yielded in all texts, starting from the promise; see
        `SourceInText.gain`."""
        known = self._known.get(place)
        if known is None:
            surely = _SURENESS[place - 1] if place else 0.0
            known = self._known[place] = Gain(_LONG_MEMORY)
            known.expect(max(0.0, _TRUST * self.promise - surely) * each, _SHOWN)
        return known.mean

    def earn(self, passes: float) -> None:
        """Add to the budget, up to its limit."""
        self._budget += max(0.0, min(passes, self._room - self._budget))
        self._room = CREDIT

    def can_pay(self, passes: float) -> bool:
        """Whether the budget has this much; if not, it is saved for."""
        self._room = max(self._room, passes)
        return passes <= self._budget

    def pay(self, passes: float) -> None:
        """Take from the budget; a negative amount is added."""
        self._budget = min(self._budget - passes, self._room)

    def may_try(self, place: int) -> bool:
        """Whether a trial at a class of confidence is due; asked once per round of this class."""
        self._waits[place] -= 1
        return self._waits[place] < 0

    def tried(self, place: int, saved: float) -> None:
        """Record what a trial has saved."""
        self.pay(-saved)
        self._failed[place] = 0 if saved > 0 else min(self._failed[place] + 1, _MOST_FAILED)
        self._waits[place] = (1 << self._failed[place]) - 1

    def expected(self, claimed: float, right: int) -> float:
        """What a round predicts for others like it: the mean of what came true and of its claim,
        corrected by how much of all claims came true."""
        promised = claimed * (self._right + 1) / (self._claimed + 1)
        fade = (1 - 1 / _BELIEVED) ** claimed  # or small claims would never be found to be empty
        self._claimed, self._right = self._claimed * fade + claimed, self._right * fade + right
        return (right + promised) / 2

    def learn(self, place: int, expected: float, price: float) -> None:
        """Record what rounds of a class are expected to yield, and the price of asking."""
        self._gain.add(expected - price)
        if place in self._known:
            self._known[place].add(expected)


class SourceInText:
    """One source in one text. trial: whether it was asked from its budget in this round. taken:
    milliseconds of asking in this round; None if it was not asked, or read a prompt first. times: of
    asking in this text. has_read: whether it had to read first and has.

    Until a few rounds show otherwise, half of the gain in other texts is expected, but not much.
    """

    def __init__(self, account: SourceAccount) -> None:
        self.account = account
        self.trial = self.has_read = False
        self.taken: float | None = None
        self.times = AskingTimes()
        self.seen = [0] * CLASSES
        self._yield: Gain | None = None
        self._classes: dict[int, Gain] = {}

    def ended(self) -> None:
        """Record that the text has ended."""
        if rounds := sum(self.seen):
            self.account.ended([count / rounds for count in self.seen])

    def usual(self, gain: Callable[[int], float]) -> float:
        """What a round is expected to save if it is asked where that pays. gain: by class."""
        both = zip(self.account.shares, self.seen, strict=True)
        counts = [_USUAL_ROUNDS * usual + own for usual, own in both]
        saved = [count * max(0.0, gain(place)) for place, count in enumerate(counts) if count]
        return sum(saved) / sum(counts)

    def gain(self, place: int, price: float = 0.0, each: float = 1.0) -> float:
        """What asking saves at this class of confidence; while little is known of that, what it
        saves in this text.

        price: of asking. each: cost of a token, which determines what a promise is worth here."""
        in_text = self._in_text(price)
        own = self._classes.get(place)
        if own is None:
            if not self.account.promise:
                return in_text.mean - price
            own = self._classes[place] = Gain(_MEMORY)
            own.expect(self.account.promised(place, each), _SHOWN)
        return own.mean - price + (in_text.mean - price) * _DOUBT / (_DOUBT + own.rounds)

    def judge(self, place: int, saved: float, expected: float, price: float = 0.0) -> None:
        """Record a round in which the source was asked.

        saved: by this round. expected: what others like it are expected to yield. price: of asking.
        """
        if place not in self._classes:
            self._classes[place] = Gain(_MEMORY)
            self._classes[place].expect(price, 0)
        self._classes[place].add(expected)
        self._in_text(price).add(expected)
        self.account.learn(place, expected, price)
        if self.trial:
            self.account.tried(place, saved)

    def _in_text(self, price: float) -> Gain:
        """What asking yields in this text; at first what it costs, and some of its usual gain."""
        if self._yield is None:
            self._yield = Gain(_MEMORY)
            self._yield.expect(price + self.account.likely_gain, 0)
        return self._yield
