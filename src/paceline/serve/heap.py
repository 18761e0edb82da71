"""The C library's heap in a process that runs for weeks.

glibc gives every thread its own heap, and no thread can reuse what another has freed. A server
prepares requests on many threads: it would keep the maximum that each of them ever needed, and
grow as one thread after another holds large objects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_ARENA_MAX = -8
"""glibc's number for the option."""


def share_one_heap() -> bool:
    """Let all threads allocate from one heap; call this before they start. Returns whether that was
    possible. Under Python's lock threads hardly ever wait for each other."""
    change = _of_libc("mallopt")
    return change is not None and change(_ARENA_MAX, 1) == 1


def give_back() -> bool:
    """Give free pages back to the system, within milliseconds. Returns whether it was possible."""
    trim = _of_libc("malloc_trim")
    if trim is None:
        return False
    trim(ctypes.c_size_t(0))
    return True


def _of_libc(name: str) -> Callable[..., Any] | None:
    """A function of glibc, or None with another C library: even those that have such a function
    lack its options."""
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version
        return getattr(library, name)  # type: ignore[no-any-return]
    except (OSError, TypeError, AttributeError):
        return None
