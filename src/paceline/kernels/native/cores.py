"""How many cores this process may keep busy."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["usable_cores"]


def usable_cores(root: Path = Path("/")) -> int:
    """The cores that it may run on, limited by its container's share of processor time.

    root: of the file system to read limits from.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    group = root / "sys/fs/cgroup"
    shares = [
        _share(group / "cpu.max", group / "cpu.max"),
        _share(group / "cpu/cpu.cfs_quota_us", group / "cpu/cpu.cfs_period_us"),
    ]
    return max(1, min([cores, *(int(share) for share in shares if share)]))


def _share(quota: Path, period: Path) -> float | None:
    """A group's processor time in cores; None if it has no limit."""
    try:
        time = int(quota.read_text(encoding="utf-8").split()[0])
        of = int(period.read_text(encoding="utf-8").split()[-1])
        return time / of if time > 0 else None
    except (OSError, ValueError, IndexError, ZeroDivisionError):
        return None
