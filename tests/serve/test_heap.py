"""The C library's heap of a server: what one thread has freed others use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.serve import engine as engines
from paceline.serve.heap import give_back

PROBE = """
import ctypes, sys, threading
from paceline.serve.heap import give_back, share_one_heap

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
if not hasattr(libc, "mallinfo2"):
    sys.exit(77)
assert give_back()
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "shared":
    assert share_one_heap()
turn, over = threading.Semaphore(0), threading.Event()

def work():
    held = [libc.malloc(50_000) for _ in range(200)]
    last = libc.malloc(100)
    for each in held:
        libc.free(each)
    turn.release()
    over.wait()
    libc.free(last)

threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
    turn.acquire()
print(libc.mallinfo2().arena)
over.set()
"""


def heap_after(how: str) -> int:
    probe = subprocess.run([sys.executable, "-c", PROBE, how], capture_output=True, text=True)
    if probe.returncode == 77:
        pytest.skip("needs glibc")
    assert probe.returncode == 0, probe.stderr
    return int(probe.stdout)


def test_threads_use_what_others_have_freed() -> None:
    """Six threads need 10 MB each, one after the other."""
    assert heap_after("shared") < heap_after("apart") - 30e6


def test_free_memory_goes_back_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    now = iter([0.0, 10.0, engines._TIDY + 1, engines._TIDY + 2, 3 * engines._TIDY])
    monkeypatch.setattr(engines, "monotonic", lambda: next(now))
    monkeypatch.setattr(engines, "give_back", lambda: calls.append(1.0))
    engine = engines.Engine(None, None, None)  # type: ignore[arg-type]
    told = []
    for _ in range(4):
        engine._tidy()
        told.append(len(calls))
    assert told == [0, 1, 1, 2]


def test_it_is_no_error_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.serve.heap.ctypes.CDLL", lambda _: object())
    assert not give_back()
