"""How many cores this process may keep busy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["usable_cores"]


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
        for group in _groups(root)
        for quota, period in (("cpu.max",) * 2, ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    ]
    return max(1, min([cores, *(int(share) for share in shares if share)]))


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups, of versions 1 and 2, and of those around them."""
    tops = {"": root / "sys/fs/cgroup", "cpu": root / "sys/fs/cgroup/cpu"}
    yield from tops.values()
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for controller in {*controllers.split(",")} & tops.keys():
            group = tops[controller] / path.strip("/")
            while group != tops[controller]:
                yield group
                group = group.parent


def _share(quota: Path, period: Path) -> float | None:
    """A group's processor time in cores; None if it has no limit."""
    try:
        time = int(quota.read_text(encoding="utf-8").split()[0])
        of = int(period.read_text(encoding="utf-8").split()[-1])
        return time / of if time > 0 else None
    except (OSError, ValueError, IndexError, ZeroDivisionError):
        return None
