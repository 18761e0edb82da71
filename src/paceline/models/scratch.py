"""Folders in which a cache's entries are made before they are moved to their places."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["scratch_in"]

_PREFIX = ".new-"


@contextmanager
def scratch_in(root: Path) -> Iterator[Path]:
    """A new folder in a cache's folder, deleted after the body; the caller holds the cache's lock.

    So no other process is in such a folder: any that is there was left by one that was killed, and
    is deleted first. Raises OSError if nothing can be written.
    """
    for left in root.glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=_PREFIX) as scratch:
        yield Path(scratch)
