"""Cost curves in the cache folder: one JSON file per model, number format, device and version.

`<cache root>/curves/<name of the key>.json` holds the key in words and the points. Files are
written atomically; one that cannot be read, or holds something else, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.json_files import json_bytes, parse_json, replace_file
from paceline.machine import describe_machine, describe_versions
from paceline.models.cache import cache_root, explain_os_errors
from paceline.planning.cost_curve import CostCurve
from paceline.protocols import Target


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
