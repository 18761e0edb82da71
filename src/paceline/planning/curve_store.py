"""Cost curves in the cache folder: one JSON file per model, number format, device and version. For
users who have not run `paceline tune`, a first one is made from few passes.

`<cache root>/curves/<name of the key>.json` holds the key in words and the points. Files are
written atomically; one that cannot be read, or holds something else, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from paceline.errors import ModelError, UsageError
from paceline.json_files import json_bytes, parse_json, replace_file
from paceline.machine import describe_machine, describe_versions
from paceline.models.cache import cache_root, explain_os_errors
from paceline.models.progress import ProgressCallback, ignore_progress
from paceline.planning.cost_curve import CostCurve
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


@dataclass(frozen=True)
class CurveKey:
    """Everything that a cost depends on.

    fingerprint: of the model's weights.
    dtype: of the model, e.g. "float32".
    weights: how they are stored, e.g. "native", "packed", "int8"; plus the cache's dtype if that is
    unusual, see `curve_key`.
    device: its name; of a CPU just "cpu", see `processor`.
    threads: of torch.
    torch, paceline: versions.
    """

    fingerprint: str
    dtype: str
    weights: str
    device: str
    processor: str
    threads: int
    torch: str
    paceline: str

    @property
    def name(self) -> str:
        """Readable but for its last part, a hash that makes it unique."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        parts = (self.fingerprint[:8], self.dtype, self.weights, self.device, f"{self.threads}t")
        readable = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
        return f"{readable}-{digest[:12]}"


def curve_key(target: Target, fingerprint: str) -> CurveKey:
    """The key of a target in its current state.

    fingerprint: as in `Session.fingerprint`.
    """
    info = target.describe()
    machine, versions = describe_machine(info.device), describe_versions()
    cache = info.report.get("cache", {}).get("dtype", "float32")
    usual = cache in ("float32", info.dtype)
    return CurveKey(
        fingerprint=fingerprint,
        dtype=info.dtype,
        weights=info.weights if usual else f"{info.weights} cache {cache}",
        device=machine["device"],
        processor=machine["processor"],
        threads=machine["threads"],
        torch=versions["torch"],
        paceline=versions["paceline"],
    )


def curve_path(key: CurveKey, root: Path | None = None) -> Path:
    """Where the curve of `key` is kept; `root` is the cache folder by default."""
    return (root or cache_root()) / "curves" / f"{key.name}.json"


def save_curve(key: CurveKey, curve: CostCurve, root: Path | None = None) -> Path:
    """Save a curve and return its file; raises ModelError if the cache folder cannot be written."""
    path = curve_path(key, root)
    with explain_os_errors(root or cache_root()):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json_bytes({"key": asdict(key), "curve": curve.to_records()}))
    return path


def load_curve(key: CurveKey, root: Path | None = None) -> CostCurve | None:
    """The curve kept for `key`; None if there is none, or it cannot be read."""
    try:
        record = parse_json(curve_path(key, root).read_text(encoding="utf-8"))
        return CostCurve.from_records(record["curve"]) if record["key"] == asdict(key) else None
    except (OSError, ValueError, KeyError, TypeError):
        # A curve can be measured again: no reason to refuse the model.
        return None


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
    key = curve_key(target, fingerprint)
    curve = load_curve(key)
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
            save_curve(key, curve)
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
