"""Recording what a function asks of a GPU, to ask for it again in one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

__all__ = ["GraphRecorder", "Recorder", "Run", "recorder_for"]

Run = Callable[[], torch.Tensor]


class Recorder(Protocol):
    """Turns functions into recordings."""

    def record(self, run: Run) -> Run:
        """A function that does to the same memory what `run` does now, and returns the same
        tensor each time, with new contents. Raises where that cannot be had."""
        ...

    def renew(self) -> None:
        """All that was recorded so far is gone."""
        ...


def recorder_for(device: torch.device) -> Recorder | None:
    """A recorder for functions on `device`; None where there is none, as on a CPU."""
    return GraphRecorder(device) if device.type == "cuda" else None


class GraphRecorder:
    """Records CUDA graphs. All that one recorder makes share their working memory, so only one of
    them may run at a time; their results stay apart."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._ready = False

    def renew(self) -> None:
        """Share new memory: what was shared goes with the last graph that used it."""
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Run) -> Run:
        """Record `run`, which has been run before, so that nothing is set up for the first time.
        The recorder's device must be the current one.

        Raises RuntimeError, or whatever `run` raises, where it waits for the device.
        """
        current = torch.cuda.current_stream()
        # Leaving this context brings the stream back where a failed capture leaves its own.
        with torch.cuda.stream(current):
            if not self._ready:
                self._try(run)
                self._ready = True
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile: those of a server do.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                result = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    def _try(self, run: Run) -> None:
        """Run it on the stream of the captures, for which libraries set things up on first use."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream), _waiting_is_an_error():
                run()
        finally:
            current.wait_stream(self._stream)


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """Raise where the host waits for the device, which no graph can do: found out before the
    capture, it leaves no half of one behind."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not find every wait; the capture does
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
