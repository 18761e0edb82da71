"""Record a function's work on a GPU, to replay it in one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

__all__ = ["GraphRecorder", "Repeated", "Run", "on_device", "recorder_for"]

Run = Callable[[], torch.Tensor]


def recorder_for(device: torch.device) -> GraphRecorder | None:
    """Make a recorder for functions on `device`; None if there is none, as on a CPU."""
    return GraphRecorder(device) if device.type == "cuda" else None


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a CUDA device the current one, as recording and replaying need."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Repeated:
    """Work on tensors that never move, recorded when it is called for the second time: recording
    costs about what one replay saves. Without a recorder, or if recording fails, it runs each time.

    recorded: whether calls replay. failed: why recording has failed.
    """

    def __init__(self, run: Run, recorder: GraphRecorder | None) -> None:
        self._run, self._recorder = run, recorder
        self._has_run = False
        self.recorded = False
        self.failed: str | None = None

    def __call__(self) -> torch.Tensor:
        """The result, which the next call overwrites; see `on_device`."""
        if self._has_run and self._recorder is not None and not (self.recorded or self.failed):
            self._record(self._recorder)
        result = self._run()
        self._has_run = True
        return result

    def _record(self, recorder: GraphRecorder) -> None:
        """The work may be done meanwhile: doing it again writes the same to the same places."""
        try:
            self._run = recorder.record(self._run)
            self.recorded = True
        except Exception as error:
            # Whatever the error, the work can be done without a recording.
            cause: BaseException = error
            while cause.__context__ is not None:  # a broken capture fails again when it ends
                cause = cause.__context__
            reason = str(cause).partition("\n")[0]
            self.failed = f"{type(cause).__name__}: {reason}"


class GraphRecorder:
    """Records CUDA graphs. All graphs of one recorder share working memory, so only one of them may
    run at a time; their results stay separate."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._ready = False

    def renew(self) -> None:
        """All earlier recordings have been dropped: share new memory; the old memory is freed with
        the last graph that uses it."""
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Run) -> Run:
        """Return a function that repeats what `run` does, on the same memory, and always returns
        the same tensor, with new contents. `run` has run before, so that its first-time setup is
        done; the recorder's device must be the current one.

        Raises RuntimeError, or whatever `run` raises, if `run` waits for the device.
        """
        current = torch.cuda.current_stream()
        # A failed capture leaves its own stream current; this context restores the previous one.
        with torch.cuda.stream(current):
            if not self._ready:
                self._try(run)
                self._ready = True
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile, as those of a server do.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                result = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    def _try(self, run: Run) -> None:
        """Run it once on the capture stream, as libraries set things up per stream on first use."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream), _waiting_is_an_error():
                run()
        finally:
            current.wait_stream(self._stream)


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """Raise where the host waits for the device, which no graph can do; found before the capture,
    this leaves no partial one."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warns that it misses some waits; the capture finds them
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
