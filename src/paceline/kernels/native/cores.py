"""How many cores this process may keep busy."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.kernels.native.control_groups import control_groups

_LIMITS = (("", "cpu.max", "cpu.max"), ("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
"""Where control groups of versions 2 and 1 name processor time, and the period it is for."""


def usable_cores(root: Path = Path("/")) -> int:
    """The cores that it may run on, limited by the share of processor time of its control groups: a
    container's, or a service's.

    root: of the file system to read limits from.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    shares = [
        _share(group / quota, group / period)
        for controller, quota, period in _LIMITS
        for group in control_groups(root, controller)
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
