"""Processes that are killed at moments counted in calls, not by the clock: a busy machine would
miss those."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType

from tests.forked import untouched_process


def killed_at(moments: Iterable[int], work: Callable[..., object], *arguments: object) -> int:
    """Do the work in one process after the other until one gets to its end; returns how many died.

    work, arguments: can be pickled. moments: the number of the call of a function of
    `paceline.training` at which each process dies by SIGKILL; the one after them is left alone.
    """
    kills = 0
    for moment in [*moments, 0]:
        process = untouched_process().Process(target=_die_at, args=(moment, work, *arguments))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    return kills


def _die_at(moment: int, work: Callable[..., object], *arguments: object) -> None:
    calls = 0

    def count(frame: FrameType, *_: object) -> None:
        nonlocal calls
        calls += "/paceline/training/" in frame.f_code.co_filename
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    if moment:
        threading.settrace(count)
        sys.settrace(count)  # which hears of calls alone, as it asks for nothing within them
    work(*arguments)
