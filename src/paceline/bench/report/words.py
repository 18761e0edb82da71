"""Numbers, texts and verdicts in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paceline.bench.entries import Key
from paceline.bench.metrics import MethodSummary
from paceline.bench.trial import PLAIN
from paceline.tables import Cell

T = TypeVar("T")

NOTHING = "-"
FASTER, SLOWER, EVEN = "up", "down", "even"


def known(value: T | None, show: Callable[[T], str], otherwise: str = NOTHING) -> str:
    """The value as text, `otherwise` for None."""
    return otherwise if value is None else show(value)


def short(value: float) -> str:
    """A ratio, or a difference of logits: 1.6181  ->  "1.62", 0.0025  ->  "0.0025" """
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def times(value: float) -> str:
    """1.6181  ->  "1.62x" """
    return f"{short(value)}x"


def rate(value: float) -> str:
    """Tokens per second."""
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def interval(method: MethodSummary) -> str:
    """The speed-up's interval, "1.41 to 1.85"; "" if there is none."""
    if method.method == PLAIN or method.prompts < 2:
        return ""
    low, high = method.interval
    return f"{short(low)} to {short(high)}"


def tone(method: MethodSummary) -> str:
    """Faster or slower if the interval, rounded as shown, lies on one side of 1."""
    if not interval(method):
        return ""
    low, high = (round(bound, 2) for bound in method.interval)
    return FASTER if low > 1 else SLOWER if high < 1 else EVEN


def speedup(method: MethodSummary, without_interval: str = "") -> Cell:
    """The speed-up, with its interval and whether it is one."""
    return Cell(times(method.speedup), interval(method) or without_interval, tone(method))


def text_name(key: Key) -> str:
    """ "suite/prompt", with the turn from the second on."""
    suite, prompt, turn = key
    return f"{suite}/{prompt}, turn {turn + 1}" if turn else f"{suite}/{prompt}"


def largest_gap(method: MethodSummary) -> float | None:
    """The largest logit gap where outputs differ; None if one of them ended there every time."""
    gaps = [place.logit_gap for _, place in method.places]
    return max((abs(each) for each in gaps if each is not None), default=None)
