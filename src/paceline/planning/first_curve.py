"""A first cost curve from few passes, for users who have not run `paceline tune`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations
from statistics import median

from paceline.errors import ModelError, UsageError
from paceline.models.cache import cache_root
from paceline.models.progress import ProgressCallback, ignore_progress
from paceline.planning.cost_curve import CostCurve
from paceline.planning.curve_store import curve_key, load_curve, save_curve
from paceline.planning.measure import PassTimes, curve_of, time_passes
from paceline.protocols import Target

_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
_NOW = (1, 8)
"""Widths that are timed once to see whether a stored curve still holds."""
_CONTEXT = 128
_REPEATS = 5
_STEADY = 1.5
_SECONDS = 5.0
"""Slow passes are timed less often, to fit into this: they vary less, and the user is waiting."""
_SWEEP = 17
"""Timing every width once takes about as long as this many passes of one row."""


def known_curve(
    target: Target,
    fingerprint: str,
    measure: bool = True,
    progress: ProgressCallback = ignore_progress,
) -> CostCurve | None:
    """The stored curve of a target on this machine, or else a rough one, which is then stored. A
    stored curve is replaced if a pass is now much faster: other work slowed down its own passes.

    fingerprint: as in `Session.fingerprint`. measure: whether to time passes; if not, a missing
    curve is None. progress: told before a curve is measured.

    Measuring takes as long as about a hundred tokens of plain decoding, or about forty if they are
    slow. The result is stored unless other work on the machine disturbs it or the cache folder
    cannot be written. The target keeps nothing of closed texts afterwards. Returns None for a model
    without room for two tokens.
    """
    key, root = curve_key(target, fingerprint), cache_root()
    curve = load_curve(key, root)
    if not measure:
        return curve
    try:
        now = {width: times[0] for (width, _), times in time_passes(target, _NOW, (1,), 1).items()}
        if curve is not None and _holds(curve, now):
            return curve
        progress("measure", 0, None)
        repeats = max(1, min(_REPEATS, round(_SECONDS / (_SWEEP * now[1]))))
        times = time_passes(target, _WIDTHS, (_CONTEXT,), repeats)
    except UsageError:
        return None
    # With few passes the fastest one separates widths best: disturbances only slow passes down.
    curve = curve_of(times, min)
    if fingerprint and _is_steady(times):
        with suppress(ModelError):
            save_curve(key, curve, root)
    return curve


def _holds(curve: CostCurve, now: Mapping[int, float]) -> bool:
    """Whether no pass is much faster now, in seconds by width, than the curve measured it."""
    both = now.keys() & {*curve.widths}
    return all(curve.cost(width) <= _STEADY * 1e3 * now[width] for width in both)


def _is_steady(times: PassTimes) -> bool:
    """Whether most passes of each width took about as long as its fastest one, and no wider pass
    was far faster than all narrower ones: a machine that is busy all the time slows down every
    pass."""
    fastest = [min(taken) for _, taken in sorted(times.items())]
    falls = any(_STEADY * wide < narrow for narrow, wide in combinations(fastest, 2))
    return not falls and all(median(taken) <= _STEADY * min(taken) for taken in times.values())
