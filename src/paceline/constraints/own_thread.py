"""Work in threads of its own, for which neither other work nor the end of the process waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread, stack_size
from typing import TypeVar

T = TypeVar("T")

_starting = Lock()  # the size of stacks is the whole process's


def in_own_thread(work: Callable[[], T], stack: int = 0) -> Future[T]:
    """Start the work in a new thread. stack: bytes of its stack; 0 for the usual size.

    An executor's threads would not do: a process that ends waits for them.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # so that it cannot be cancelled under the thread

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # such as a panic in a library written in Rust
            outcome.set_exception(error)

    thread = Thread(target=run, name="paceline-work", daemon=True)
    with _starting:
        usual = stack_size(stack)
        try:
            thread.start()
        finally:
            stack_size(usual)
    return outcome
