"""Locks between processes, and files and folders that one process at a time may write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from errno import ENOLCK
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paceline.errors import UsageError, writable


def lock_beside(path: Path) -> Path:
    """The lock file of a file."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def held(
    lock_file: Path,
    on_wait: Callable[[], None] = lambda: None,
    patience: float = -1,
    **settings: Any,
) -> Iterator[None]:
    """Hold an inter-process lock during the body; `on_wait` is called if another process has it.

    lock_file: in a folder that is created if missing. patience: seconds to wait for that process,
    which may have been stopped; -1 for no limit. settings: more of `FileLock`.

    Raises `Timeout`, a TimeoutError, after these, and OSError if the lock file cannot be written or
    locked.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_file, **settings)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire(timeout=patience)
    except NotImplementedError as error:
        raise OSError(ENOLCK, "its file system has no locks") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alone(
    lock_file: Path, path: Path, what: str, advice: str = "wait until it is done"
) -> Iterator[None]:
    """`held` without waiting, with an error for the user.

    path: is written meanwhile; what: the same as an object of "cannot write", for messages. advice:
    what to do while another process writes.

    Raises UsageError if another process holds it, or if it cannot be written.
    """
    with ExitStack() as lock:
        with writable(what):
            try:
                lock.enter_context(held(lock_file, patience=0))
            except Timeout as error:
                raise UsageError(f"another process is writing to {path}: {advice}") from error
        yield
