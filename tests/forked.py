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
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import Any, AnyStr, TextIO

__all__ = ["Forked", "untouched_process"]

_INHERITED = -1
"""Stands for a stream that is none of the pipes."""
_DESCRIPTORS = 4096


_IMPORTED = ("tests.training.methods_training", "transformers.models.llama.modeling_llama")


def untouched_process() -> BaseContext:
    """Makes processes for what a fork of the tests cannot do: torch forbids gradients after gradients
    of the parent. They are forks of one that has imported everything and computed nothing."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTED])
    return context


class Forked(subprocess.Popen[AnyStr]):
    """`python -m MODULE ...` or `python FILE ...`, given as [MODULE, ...] or [FILE, ...], with all
    that the tests have imported.

    Variables that libraries read when they are imported are the tests' own.
    """

    def _execute_child(self, args: Sequence[object], *how: Any) -> None:
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
        sys.stdin, sys.stdout, sys.stderr = map(_stream, range(3), ("r", "w", "w"))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        logging.getLogger().handlers.clear()
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        sys.argv = words
        code = _exit_code(words[0])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _stream(place: int, mode: str) -> TextIO:
    return open(place, mode, closefd=False)  # type: ignore[return-value]


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
