"""Whether a drafter is asked at all, and how much may be spent on finding out.

A gate is open while guessing gains time, counted over many rounds, against plain decoding and with
the drafter's own time. Closed, it opens for a trial now and then. Trials, and whatever else is only
done to learn, are paid out of a purse that a hundredth of all time goes into: however often they
fail, they cost no more than that.
"""

from __future__ import annotations

__all__ = ["SAVINGS", "TRIAL", "Gate", "Purse"]

SAVINGS = 0.01
"""The share of time that goes into the purse."""
TRIAL = 8
"""Rounds of a trial: drafters that begin anew need some before they gain anything."""
_MEMORY = 32
_DOUBT = 4
# A few rounds tell little, since most gain nothing and some gain much; and who is sent away for it
# may not be back for hundreds. So the very first trial goes on while little seems to be lost.
_FIRST_TRIAL = 24
_LENIENCE = 0.15
_PURSE = 4.0


class Purse:
    """What may be spent on finding out, in passes of plain decoding; one for all texts.

    It holds a few passes, or as many as the dearest trial takes that somebody waits for.
    """

    def __init__(self) -> None:
        self._passes = 0.0
        self._room = _PURSE

    def earn(self, passes: float) -> None:
        """A pass took as long as so many of plain decoding."""
        self._passes += max(0.0, min(SAVINGS * passes, self._room - self._passes))
        self._room = _PURSE

    def can_pay(self, passes: float) -> bool:
        """Whether there is so much in it."""
        return passes <= self._passes

    def save_for(self, passes: float) -> None:
        """There should be room for so much in the next pass."""
        self._room = max(self._room, passes)

    def pay(self, passes: float) -> None:
        """Take it out. What cannot wait may leave a debt."""
        self._passes -= passes


class Gate:
    """Of one drafter on one text.

    gain: what a round with the drafter has saved of late, in passes of plain decoding.
    """

    def __init__(self, purse: Purse) -> None:
        self.is_open = True
        self.gain = 0.0
        self._purse = purse
        self._age = 0
        self._is_first = True

    def heir(self) -> Gate:
        """For the next text: open where this one is, and sooner convinced of another opinion. What
        has not gained goes on being tried, or resting: many short texts are as one long one."""
        heir = Gate(self._purse)
        heir.is_open = self.is_open
        heir._is_first = self._is_first and self._age < _FIRST_TRIAL
        if self.gain < 0:
            heir.gain, heir._age = self.gain, self._age
        else:
            heir.gain, heir._age = self.gain / 2, min(self._age, TRIAL // 2)
        return heir

    def asks(self, price: float) -> bool:
        """Whether the drafter is asked this round. price: what that costs if nothing comes of it,
        in passes of plain decoding."""
        if not self.is_open:
            if self._purse.can_pay(TRIAL * price):
                self._purse.pay(TRIAL * price)
                self.is_open, self.gain, self._age = True, 0.0, 0
                self._is_first = False
            else:
                self._purse.save_for(TRIAL * price)
        return self.is_open

    def judge(self, saved: float) -> None:
        """A round in which the drafter was asked saved so many passes of plain decoding."""
        self._age += 1
        self.gain += (saved - self.gain) / min(self._age + _DOUBT, _MEMORY)
        lenience = _LENIENCE if self._is_first and self._age < _FIRST_TRIAL else 0.0
        if self._age >= TRIAL and self.gain < -lenience:
            self.is_open = False
