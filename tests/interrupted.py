"""Calls that are interrupted anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any


def everywhere(*modules: ModuleType) -> Iterator[Callable[[Callable[[], object]], None]]:
    """For each bytecode instruction that a call executes in these modules, something that makes the
    call and raises KeyboardInterrupt there, as Ctrl-C does, and catches it; then the end.

    Each round must begin anew, with what no interruption has touched.
    """
    files = {str(Path(str(module.__file__))) for module in modules}
    for last in count():
        left = last

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in files:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        def make(call: Callable[[], object]) -> None:
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                call()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)

        yield make
        if left >= 0:
            return
