"""Times of texts, and the speed-ups that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from paceline.bench.entries import Entry

_RESAMPLES = 2000
_CONFIDENCE = 0.95
_AT_ONCE = 1 << 18
"""Texts drawn; all at once may be gigabytes."""


@dataclass(frozen=True)
class TextTimes:
    """One text by one method: its first trial's tokens, and median seconds for as many, in all and
    after the first pass. Trials may differ in length, with lossy acceptance for example."""

    tokens: int
    seconds: float
    after_prompt: float

    @classmethod
    def of(cls, trials: Sequence[Entry]) -> TextTimes:
        """From all trials of a method on a text."""
        tokens = trials[0].tokens
        shares = [tokens / trial.tokens if trial.tokens else 1.0 for trial in trials]
        after = [trial.seconds - trial.stats.prefill_seconds for trial in trials]
        return cls(
            tokens,
            median(trial.seconds * share for trial, share in zip(trials, shares)),
            median(seconds * share for seconds, share in zip(after, shares)),
        )

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def __add__(self, other: TextTimes) -> TextTimes:
        both = self.seconds + other.seconds, self.after_prompt + other.after_prompt
        return TextTimes(self.tokens + other.tokens, *both)


def by_prompt(trials: Iterable[Entry], times: Iterable[TextTimes]) -> list[TextTimes]:
    """The turns of a conversation, and several answers to one prompt, as one: they are not
    independent. trials: one of each text."""
    found: dict[tuple[str, str], TextTimes] = {}
    for trial, each in zip(trials, times):
        place = trial.suite, trial.group or trial.prompt
        found[place] = found[place] + each if place in found else each
    return list(found.values())


def decode_ratio(own: TextTimes, plain: TextTimes, texts: int) -> float | None:
    """Tokens of whole texts over the time after the first pass, which may yield several tokens."""
    if not (own.after_prompt > 0 and plain.after_prompt > 0 and plain.tokens > texts):
        return None
    return (own.tokens / own.after_prompt) / (plain.tokens / plain.after_prompt)


def speedup_interval(texts: Sequence[tuple[int, float, int, float]]) -> tuple[float, float]:
    """The 95 % confidence interval of the speed-up: percentiles over what is resampled.

    texts: tokens and seconds of the method, then of the baseline.
    """
    values = np.array(texts)
    drawn = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    parts = np.array_split(drawn, 1 + drawn.size // _AT_ONCE)
    sums = np.concatenate([values[rows].sum(axis=1) for rows in parts])
    ratios = (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3])
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)
