"""Processes that need not import anything: importing torch alone takes seconds."""

from __future__ import annotations

import logging
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.context import BaseContext
from typing import Any, AnyStr, TextIO
from unittest.mock import patch

__all__ = ["Forked", "start_fork_server", "untouched_process"]

_INHERITED = -1
"""Stands for a stream that is none of the pipes."""
_DESCRIPTORS = 4096


def untouched_process() -> BaseContext:
    """Makes processes for what a fork of the tests cannot do: torch forbids gradients after gradients
    of the parent. They are forks of one that has imported everything and computed nothing."""
    return get_context("forkserver")


def start_fork_server() -> None:
    """Fork the process that `untouched_process` forks; to be called before anything is computed."""
    if sys.platform == "linux":
        with patch("multiprocessing.util.spawnv_passfds", _serve_forks):
            forkserver.ensure_running()


def _serve_forks(_: object, words: Sequence[str], passed: Sequence[int]) -> int:
    """What multiprocessing would start as a new Python with these words."""
    if child := os.fork():
        return child
    try:
        low = 3
        for descriptor in [*sorted(passed), _DESCRIPTORS]:
            os.closerange(low, descriptor)
            low = descriptor + 1
        _open_streams()
        exec(words[-1], {})  # noqa: S102
    finally:
        os._exit(1)


class Forked(subprocess.Popen[AnyStr]):
    """`python -m MODULE ...` or `python FILE ...`, given as [MODULE, ...] or [FILE, ...], with all
    that the tests have imported; where forks of torch are not safe, in a process of its own.

    Variables that libraries read when they are imported are the tests' own.
    """

    def _execute_child(self, args: Sequence[object], *how: Any) -> None:
        if sys.platform != "linux":
            program = [str(word) for word in args]
            program = program if program[0].endswith(".py") else ["-m", *program]
            super()._execute_child([sys.executable, *program], *how)  # type: ignore[misc]
            return
        assert how[1] is None and how[4] is None, "preexec_fn and cwd have no effect here"
        env, streams = how[5], how[9:15]
        theirs = streams[0], streams[3], streams[5]
        for own in (sys.stdout, sys.stderr):
            own.flush()
        self.pid = os.fork()
        if not self.pid:
            _run([str(word) for word in args], env, theirs)
        self._child_created = True
        self._close_pipe_fds(*streams)


def _run(words: list[str], env: Mapping[str, str] | None, streams: Sequence[int]) -> None:
    """Become the program; does not return."""
    code = 1
    try:
        for place, stream in enumerate(streams):
            if stream != _INHERITED:
                os.dup2(stream, place)
        os.closerange(3, _DESCRIPTORS)  # a pipe that stays open here has no end for its reader
        _open_streams()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        logging.getLogger().handlers.clear()
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        sys.argv = words
        code = _exit_code(words[0])
        if not code:
            sys.stdout.flush()
    except BaseException:  # as Python, which cannot flush a closed pipe either
        traceback.print_exc()
        code = 120
    finally:
        sys.stderr.flush()
        os._exit(code)


def _open_streams() -> None:
    """Python's own, not those of pytest."""
    sys.stdin, sys.stdout = _stream(0, "r"), _stream(1, "w")
    sys.stderr = _stream(2, "w", buffering=1, errors="backslashreplace")


def _stream(place: int, mode: str, **how: Any) -> TextIO:
    return open(place, mode, closefd=False, **how)  # type: ignore[return-value]


def _exit_code(program: str) -> int:
    try:
        if program.endswith(".py"):
            sys.path.insert(0, os.path.dirname(program))
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException:  # as Python ends a program
        traceback.print_exc()
        return 1
    return 0
