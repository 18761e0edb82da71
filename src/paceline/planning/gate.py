"""Whether a drafter is asked at all, and how much may be spent on finding out.

A gate is open while guessing saves time over many rounds, compared with plain decoding and
including the drafter's own time. A closed gate opens for the next text if guessing has gained over
the texts so far, and otherwise for an occasional trial. What is lost by trials, and by all else
done only to learn, is paid from a budget that receives a hundredth of all time: they cost no more
than that, and less with every trial that fails after another. What they save is added, so a drafter
that gains on some texts is tried on each.
"""

from __future__ import annotations

SAVINGS = 0.01
"""The share of time that goes into the budget of trials."""
TRIAL = 8
"""Rounds of a trial: a drafter that starts afresh needs some before it gains anything. There are
fewer if it loses more than the budget usually holds."""
_MEMORY, _LONG_MEMORY = 32, 128
_DOUBT = 4
# A few rounds tell little, since most gain nothing and some gain much, and a rejected drafter may
# not be asked again for hundreds. So the very first trial, which may span several texts, continues
# while it seems to lose little.
_FIRST_TRIAL = 24
_MOST_FAILED = 2  # trials in a row that still make the next one wait longer
_LENIENCE = 0.15  # loss in passes per round that counts as bad luck
_FEW = 64
"""After this many rounds in all, a drafter without gains is switched off across texts too."""
_MOST_SAVED = 4.0
_MOST_LOST = 2.5
"""Most passes that a round says others like it lose: more is a pause of the machine."""


class TrialBudget:
    """What may be spent on learning, in passes of plain decoding; one budget for all texts.

    Holds a few passes, or the cost of the most expensive trial that is waiting.
    """

    def __init__(self) -> None:
        self._passes = 0.0
        self._room = _MOST_SAVED
        self._failed = 0  # trials in a row

    def earn(self, passes: float) -> None:
        """Add the share of a pass that took as long as `passes` of plain decoding."""
        self._passes += max(0.0, min(SAVINGS * passes, self._room - self._passes))
        self._room = _MOST_SAVED

    def can_pay(self, passes: float) -> bool:
        """Whether the budget holds this much."""
        return passes <= self._passes

    def save_for(self, passes: float) -> None:
        """Make room for this much in the next pass."""
        self._room = max(self._room, passes)

    def pay(self, passes: float) -> None:
        """Take this out. What cannot wait may leave a debt."""
        self._passes -= passes

    def receive(self, passes: float) -> None:
        """Put this in, up to the limit. A negative amount is taken out, but only so much at once: a
        pause of the machine would delay all other trials by a hundred times as long."""
        passes = max(passes, -_MOST_SAVED)
        self._passes = min(self._passes + passes, max(self._passes, self._room))

    def tried(self, saved: float) -> None:
        """Record what a trial saved. What it lost is paid once more for each that failed in a row
        before it."""
        if saved >= 0:
            self._failed = 0
        else:
            self.pay(-saved * self._failed)
            self._failed = min(self._failed + 1, _MOST_FAILED)


class _Trial:
    """A trial, which is paid for beforehand; rounds return what they did not cost.

    price: of a round, in passes of plain decoding.
    """

    def __init__(self, trials: TrialBudget, price: float) -> None:
        self._trials, self._price, self._paid = trials, price, TRIAL * price
        self._saved = 0.0
        trials.pay(self._paid)

    def settle(self, saved: float) -> None:
        """Account for a round that saved this much. Texts that join during a trial continue it, so
        there may be more rounds than were paid for."""
        paid = min(self._price, self._paid)
        self._paid -= paid
        self._trials.receive(paid + saved)
        self._saved += saved

    def end(self) -> None:
        """Return what the remaining rounds were to cost, beyond the budget's limit, too."""
        self._trials.pay(-self._paid)
        if self._saved:
            self._trials.tried(max(self._saved, -TRIAL * self._price))
        self._paid = self._saved = 0.0


class Gain:
    """Recent savings per round with the drafter, in passes of plain decoding.

    memory: rounds that count; the first ones are discounted.
    """

    def __init__(self, memory: int) -> None:
        self.mean = 0.0
        self.rounds = 0
        self._memory = memory

    def add(self, saved: float) -> None:
        """Record what a round saved."""
        self.rounds += 1
        self.mean += (saved - self.mean) / min(self.rounds + _DOUBT, self._memory)

    def expect(self, mean: float, rounds: int) -> None:
        """Start from a known mean, as if from this many rounds."""
        self.mean, self.rounds = mean, rounds

    @property
    def total(self) -> float:
        """What the rounds saved together, while they are few enough to all count."""
        return self.mean * (self.rounds + _DOUBT)


class Gate:
    """The gate of one drafter on one text, or of a method on all texts as if they were one long
    text, from which the gates of texts inherit.

    trials: pays for trials.
    """

    def __init__(self, trials: TrialBudget, all_texts: Gate | None = None) -> None:
        self.is_open = True
        self._trials = trials
        self._all = all_texts
        self._here = Gain(_MEMORY)
        self._everywhere: Gain = all_texts._everywhere if all_texts else Gain(_LONG_MEMORY)
        self._is_first = True
        self._trial: _Trial | None = None

    def inherited(self) -> Gate:
        """The gate of a joining text. A drafter that has gained over many texts is asked in each of
        them, though not for long if it gains nothing there: texts differ, and one unlucky text must
        not cost the others. After few rounds in all, the first texts may have been unlucky ones. A
        drafter that has not gained continues its trial, or its rest: many short texts are like one
        long text."""
        made = Gate(self._trials, self)
        known = self._everywhere
        made._is_first = self._is_first
        if known.mean > -_LENIENCE * max(0.0, 1 - known.rounds / _FEW):
            made._here.expect(max(0.0, known.mean) / 2, min(known.rounds, TRIAL // 2))
        else:
            made.is_open, made._trial = self.is_open, self._trial
            made._here.expect(self._here.mean, self._here.rounds)
        return made

    def at_more_load(self) -> Gate:
        """The gate for rounds of more texts. There rows and drafting cost more relative to what
        they save: a drafter that has not gained here does not gain there; one that has may."""
        gate, known = Gate(self._trials), self._everywhere
        if known.rounds >= _FEW and known.mean <= 0:
            gate.is_open = self.is_open
            gate._here.expect(self._here.mean, self._here.rounds)
            gate._everywhere.expect(known.mean, known.rounds)
        return gate

    def asks(self, price: float) -> bool:
        """Whether the drafter is asked this round; price: of asking in vain, in plain passes."""
        if not self.is_open and self._trials.can_pay(TRIAL * price):
            trial = _Trial(self._trials, price)
            for gate in self._with_all:
                gate.is_open, gate._is_first, gate._trial = True, False, trial
                gate._here.expect(0.0, 0)
        elif not self.is_open:
            self._trials.save_for(TRIAL * price)
        return self.is_open

    def judge(self, saved: float, expected: float) -> None:
        """Record a round with the drafter. saved: by this round, in passes like those that prices
        are in. expected: by others like it, in the text's share of a pass of plain decoding."""
        if self._trial and self._here.rounds < TRIAL:
            self._trial.settle(saved)
        expected = max(expected, -_MOST_LOST)
        self._everywhere.add(expected)
        for gate in self._with_all:
            gate._here.add(expected)
            gate.is_open = gate.is_open and not gate._has_failed
        if self._trial and not self.is_open:
            self._trial.end()

    @property
    def _has_failed(self) -> bool:
        """Whether the drafter has lost too much to be asked again without a new trial."""
        rounds = self._here.rounds
        if rounds < TRIAL:
            return self._here.total < -_MOST_SAVED
        is_first = self._is_first and self._everywhere.rounds < _FIRST_TRIAL
        return self._here.mean < (-_LENIENCE if is_first else 0.0)

    @property
    def _with_all(self) -> tuple[Gate, ...]:
        return (self,) if self._all is None else (self, self._all)


class Gates:
    """The gates of one drafter on one text, or of a method on all texts: one for each load, since
    what gains in one text alone may lose beside fifteen others.

    trials: pays for trials. all_texts: the gates from which those of a text inherit.
    """

    def __init__(self, trials: TrialBudget, all_texts: Gates | None = None) -> None:
        self._trials, self._all = trials, all_texts
        self._known: dict[int, Gate] = {}

    def at(self, texts: int) -> Gate:
        """The gate for rounds with this many texts, to a power of two."""
        load = texts.bit_length()
        if load not in self._known:
            self._known[load] = self._first(texts)
        return self._known[load]

    def _first(self, texts: int) -> Gate:
        if self._all is not None:
            return self._all.at(texts).inherited()
        less = max((load for load in self._known if load < texts.bit_length()), default=None)
        return Gate(self._trials) if less is None else self._known[less].at_more_load()
