"""The C library's heap in a process that runs for weeks.

glibc gives every thread a heap of its own, and what one has freed no other can use: a server, whose
requests are prepared on many threads, would keep the largest of what each of them ever needed, and
grow as threads come to hold large things by turns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["give_back", "share_one_heap"]

_ARENA_MAX = -8
"""glibc's number for the option."""


def share_one_heap() -> bool:
    """Let all threads allocate from one heap from now on, to be called before they begin; whether
    that was possible. Under Python's lock they hardly ever wait for each other."""
    change = _of_libc("mallopt")
    return change is not None and change(_ARENA_MAX, 1) == 1


def give_back() -> bool:
    """Hand free pages back to the system, which takes milliseconds; whether that was possible."""
    trim = _of_libc("malloc_trim")
    if trim is None:
        return False
    trim(ctypes.c_size_t(0))
    return True


def _of_libc(name: str) -> Callable[..., Any] | None:
    """A function of glibc, None where that is not what runs. Of other libraries even those that
    have such a function do not have its options."""
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version
        return getattr(library, name)  # type: ignore[no-any-return]
    except (OSError, TypeError, AttributeError):
        return None
