"""Whether a drafter is asked at all, and how much may be spent on finding out.

A gate is open while guessing gains time, counted over many rounds, against plain decoding and with
the drafter's own time. Closed, it opens for a trial now and then. Trials, and whatever else is only
done to learn, are paid out of a purse that a hundredth of all time goes into: however often they
fail, they cost no more than that.
"""

from __future__ import annotations

__all__ = ["SAVINGS", "TRIAL", "Gate"]

SAVINGS = 0.01
"""The share of time that goes into the purse."""
TRIAL = 8
"""Rounds of a trial: drafters that begin anew need some before they gain anything."""
_MEMORY = 32
_DOUBT = 4
_PURSE = 4.0


class Gate:
    """Of one drafter on one text. Times are in milliseconds.

    gain: what a round with the drafter has saved of late, in passes of plain decoding.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.gain = 0.0
        self._purse = 0.0
        self._age = 0

    def heir(self) -> Gate:
        """For the next text: open, with half of what was gained, and the purse."""
        heir = Gate()
        heir.gain, heir._purse = self.gain / 2, self._purse
        heir._age = min(self._age, TRIAL // 2)
        return heir

    def earn(self, milliseconds: float, plain: float) -> None:
        """A round took so long. plain: the time of a round of plain decoding; a few of these fill
        the purse."""
        if self._purse < _PURSE * plain:
            self._purse += SAVINGS * milliseconds

    def can_pay(self, milliseconds: float) -> bool:
        """Whether there is so much in the purse."""
        return milliseconds <= self._purse

    def pay(self, milliseconds: float) -> None:
        """Take it out of the purse."""
        self._purse -= milliseconds

    def asks(self, price: float) -> bool:
        """Whether the drafter is asked this round. price: what that costs if nothing comes of it."""
        if not self.is_open and self.can_pay(TRIAL * price):
            self.pay(TRIAL * price)
            self.is_open, self.gain, self._age = True, 0.0, 0
        return self.is_open

    def judge(self, saved: float) -> None:
        """A round in which the drafter was asked saved so many passes of plain decoding."""
        self._age += 1
        self.gain += (saved - self.gain) / min(self._age + _DOUBT, _MEMORY)
        if self._age >= TRIAL and self.gain < 0:
            self.is_open = False
