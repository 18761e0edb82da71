"""Files and folders that one process at a time may write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOLCK
from pathlib import Path

from filelock import FileLock, Timeout

from paceline.errors import UsageError, writable


def lock_beside(path: Path) -> Path:
    """The lock file of a file."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def alone(
    lock_file: Path, path: Path, what: str, advice: str = "wait until it is done"
) -> Iterator[None]:
    """Hold a lock file, in a folder that is created if missing, until the end.

    path: is written meanwhile; what: the same as an object of "cannot write", for messages. advice:
    what to do while another process writes.

    Raises UsageError if another process holds it, or if it cannot be written.
    """
    lock = FileLock(lock_file)
    with writable(what):
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(f"another process is writing to {path}: {advice}") from error
        except NotImplementedError as error:
            raise OSError(ENOLCK, "its file system has no locks") from error
    try:
        yield
    finally:
        lock.release()
