"""Tune the settings of a method by trial, one after the other (Ouroboros, Zhao et al. 2024, arXiv
2402.13720, appendix B.2: speed depends little on any one setting, so a few trials replace a grid).

    length 2 4 6 9, window 3 7 12, level 3 5; from length=4, window=7, level=5

    length: 2, 4, 6 and 9 with window=7, level=5        6 is best and stays
    window: 3, 7 and 12 with length=6, level=5          7 is best
    level: 3 and 5 with length=6, window=7              9 trials; the grid has 24
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Settings = Mapping[str, Any]

# A trial must be better than the current settings by this factor, or the difference is chance.
_MARGIN = 1.01


@dataclass(frozen=True)
class Trial:
    """The result of some settings.

    speedup: over plain decoding, after the prompt. tokens_per_pass: of the target.
    different: number of texts that differ from plain decoding's.
    """

    settings: Settings
    speedup: float
    tokens_per_pass: float
    different: int = 0


@dataclass(frozen=True)
class Step:
    """The trials of one setting, or of several `names` that share one value.

    trials: of its values, in the order given. best: the one that is kept.
    """

    names: tuple[str, ...]
    trials: list[Trial]
    best: Trial


def search(
    tried: Mapping[tuple[str, ...], Sequence[Any]],
    start: Settings,
    measure: Callable[[Sequence[Settings]], list[Trial]],
) -> Iterator[Step]:
    """Go through the settings once, in order.

    tried: settings with the values to try; all names of a key get the same value.
    start: initial settings; their values are tried too, even if not listed.
    measure: tries several settings side by side.
    """
    current = dict(start)
    for names, values in tried.items():
        candidates = [dict.fromkeys(names, value) for value in values]
        own = {name: current[name] for name in names}
        if own not in candidates:
            candidates.insert(0, own)
        if len(candidates) < 2:
            continue
        trials = measure([{**current, **candidate} for candidate in candidates])
        known = trials[candidates.index(own)]
        best = max(trials, key=lambda trial: trial.speedup)
        if best.speedup < _MARGIN * known.speedup:
            best = known
        current = dict(best.settings)
        yield Step(names, trials, best)
