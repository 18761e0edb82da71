"""Whether a drafter is asked at all, and how much may be spent on finding out.

A gate is open while guessing gains time, counted over many rounds, against plain decoding and with
the drafter's own time. Closed, it opens for the next text where guessing has gained over the texts
so far, and else for a trial now and then. Trials, and whatever else is only done to learn, are paid
out of a budget that a hundredth of all time goes into: however often they fail, they cost no more
than that.
"""

from __future__ import annotations

__all__ = ["SAVINGS", "TRIAL", "Gain", "Gate", "Gates", "TrialBudget"]

SAVINGS = 0.01
"""The share of time that goes into the budget of trials."""
TRIAL = 8
"""Rounds of a trial: drafters that begin anew need some before they gain anything."""
_MEMORY, _LONG_MEMORY = 32, 128
_DOUBT = 4
# A few rounds tell little, since most gain nothing and some gain much; and who is sent away for it
# may not be back for hundreds. So the very first trial goes on while little seems to be lost.
_FIRST_TRIAL = 24
_LENIENCE = 0.15
_FEW = 64
"""After so many rounds in all a drafter that has gained nothing rests over texts as well."""
_MOST_SAVED = 4.0


class TrialBudget:
    """What may be spent on finding out, in passes of plain decoding; one for all texts.

    It holds a few passes, or as many as the costliest trial takes that somebody waits for.
    """

    def __init__(self) -> None:
        self._passes = 0.0
        self._room = _MOST_SAVED

    def earn(self, passes: float) -> None:
        """A pass took as long as so many of plain decoding."""
        self._passes += max(0.0, min(SAVINGS * passes, self._room - self._passes))
        self._room = _MOST_SAVED

    def can_pay(self, passes: float) -> bool:
        """Whether there is so much in it."""
        return passes <= self._passes

    def save_for(self, passes: float) -> None:
        """There should be room for so much in the next pass."""
        self._room = max(self._room, passes)

    def pay(self, passes: float) -> None:
        """Take it out. What cannot wait may leave a debt."""
        self._passes -= passes


class Gain:
    """What a round with the drafter has saved of late, in passes of plain decoding.

    memory: rounds that count; the first ones are taken with a doubt.
    """

    def __init__(self, memory: int) -> None:
        self.mean = 0.0
        self.rounds = 0
        self._memory = memory

    def add(self, saved: float) -> None:
        """A round saved so much."""
        self.rounds += 1
        self.mean += (saved - self.mean) / min(self.rounds + _DOUBT, self._memory)

    def expect(self, mean: float, rounds: int) -> None:
        """What is to be taken for known before the next round, as if from so many."""
        self.mean, self.rounds = mean, rounds


class Gate:
    """Of one drafter on one text; or, without a text, of a method on all of them as if they were
    one long text, which those of texts inherit from.

    trials: what they are paid from.
    """

    def __init__(self, trials: TrialBudget, all_texts: Gate | None = None) -> None:
        self.is_open = True
        self._trials = trials
        self._all = all_texts
        self._here = Gain(_MEMORY)
        self._everywhere: Gain = all_texts._everywhere if all_texts else Gain(_LONG_MEMORY)
        self._is_first = True

    @property
    def gain(self) -> float:
        """What a round with the drafter has saved of late, in passes of plain decoding."""
        return self._here.mean

    def inherited(self, lenience: float = _LENIENCE) -> Gate:
        """For a text that joins. What has gained over many texts is asked in each of them, though
        not for long where it has gained nothing there: texts differ, and one in which it had no
        luck must not cost the others. As long as there were few rounds the first texts may have
        been of that kind. What has not gained goes on being tried, or resting: many short texts
        are as one long one.

        lenience: passes per round that may have been lost in the first rounds of all, and are taken
        for bad luck.
        """
        made = Gate(self._trials, self)
        known = self._everywhere
        made._is_first = self._is_first and self._here.rounds < _FIRST_TRIAL
        if known.mean > -lenience * max(0.0, 1 - known.rounds / _FEW):
            made._here.expect(max(0.0, known.mean) / 2, min(known.rounds, TRIAL // 2))
        else:
            made.is_open = self.is_open
            made._here.expect(self._here.mean, self._here.rounds)
        return made

    def at_more_load(self) -> Gate:
        """For rounds of more texts: rows and drafting cost more there beside what they save, so who
        has not gained here does not gain there; who has may."""
        gate, known = Gate(self._trials), self._everywhere
        if known.rounds >= _FEW and known.mean <= 0:
            gate.is_open, gate._is_first = self.is_open, self._is_first
            gate._here.expect(self._here.mean, self._here.rounds)
            gate._everywhere.expect(known.mean, known.rounds)
        return gate

    def asks(self, price: float) -> bool:
        """Whether the drafter is asked this round. price: what that costs if nothing comes of it,
        in passes of plain decoding."""
        if not self.is_open:
            if self._trials.can_pay(TRIAL * price):
                self._trials.pay(TRIAL * price)
                for gate in self._with_all:
                    gate._open_for_trial()
            else:
                self._trials.save_for(TRIAL * price)
        return self.is_open

    def judge(self, saved: float) -> None:
        """A round in which the drafter was asked saved so many passes of plain decoding."""
        self._everywhere.add(saved)
        for gate in self._with_all:
            gate._judge(saved)

    @property
    def _with_all(self) -> tuple[Gate, ...]:
        return (self,) if self._all is None else (self, self._all)

    def _open_for_trial(self) -> None:
        self.is_open, self._is_first = True, False
        self._here.expect(0.0, 0)

    def _judge(self, saved: float) -> None:
        self._here.add(saved)
        rounds = self._here.rounds
        lenience = _LENIENCE if self._is_first and rounds < _FIRST_TRIAL else 0.0
        if rounds >= TRIAL and self._here.mean < -lenience:
            self.is_open = False


class Gates:
    """Of one drafter on one text, or of a method on all of them: a gate for each load, since what
    gains in one text alone may lose beside fifteen others.

    trials: what they are paid from. all_texts: whose gates this text's inherit from.
    """

    def __init__(self, trials: TrialBudget, all_texts: Gates | None = None) -> None:
        self._trials, self._all = trials, all_texts
        self._known: dict[int, Gate] = {}

    def at(self, texts: int) -> Gate:
        """The gate for rounds in which so many texts are written, to a power of two."""
        load = texts.bit_length()
        gate = self._known.get(load)
        if gate is None:
            gate = self._known[load] = self._first(texts)
        return gate

    def _first(self, texts: int) -> Gate:
        if self._all is not None:
            return self._all.at(texts).inherited()
        less = max((load for load in self._known if load < texts.bit_length()), default=None)
        return Gate(self._trials) if less is None else self._known[less].at_more_load()
