"""Linux's control groups, which limit a container's or a service's share of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those around it, from the outermost on; none of
    them need exist.

    root: of the file system. controller: of version 1, e.g. "cpu"; "" for version 2.
    """
    top = root / "sys/fs/cgroup" / controller
    # In a container the group's own folder may be the top one, under another name.
    places = {top: None}
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, own = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(","):
            folder = top / own.strip("/")
            inside = [each for each in (folder, *folder.parents) if each.is_relative_to(top)]
            places |= dict.fromkeys(reversed(inside))
    yield from places
