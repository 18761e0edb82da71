"""Record a function's work on a GPU, to replay it in one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Run = Callable[[], torch.Tensor]

_ATEN = torch.ops.aten
_WAITING = {
    _ATEN._local_scalar_dense.default,
    _ATEN.equal.default,
    _ATEN.is_nonzero.default,
    _ATEN.masked_select.default,
    _ATEN.nonzero.default,
}
_COPYING = {_ATEN._to_copy.default, _ATEN.copy_.default}
_INDEXING = {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default}


def recorder_for(device: torch.device) -> GraphRecorder | None:
    """Make a recorder for functions on `device`; None if there is none, as on a CPU."""
    return GraphRecorder(device) if device.type == "cuda" else None


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a CUDA device the current one, as recording and replaying need."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Repeated:
    """Work on tensors that never move, recorded when a thread calls it for the second time:
    recording costs about what one replay saves. Without a recorder, or memory for a recording, or
    if recording fails, it runs each time.

    at_once: record it in the first call, after running it, so that only that call is slow.

    recorded: whether calls replay. failed: why recording has failed.
    """

    def __init__(self, run: Run, recorder: GraphRecorder | None, at_once: bool = False) -> None:
        self._run, self._recorder, self._at_once = run, recorder, at_once
        # Libraries set things up per thread, which a recording cannot contain.
        self._ran_in = set[int]()
        self.recorded = False
        self.failed: str | None = None

    def __call__(self) -> torch.Tensor:
        """The result, which the next call overwrites; see `on_device`."""
        thread, recorder = get_ident(), self._recorder
        if recorder is not None and self._at_once and thread not in self._ran_in:
            self._run()
            self._ran_in.add(thread)
        if recorder is not None and thread in self._ran_in:
            self._record(recorder)
        result = self._run()
        self._ran_in.add(thread)
        return result

    def _record(self, recorder: GraphRecorder) -> None:
        """The work may be done meanwhile: doing it again writes the same to the same places."""
        self._recorder = None
        try:
            self._run = recorder.record(self._run)
            self.recorded = True
        except torch.OutOfMemoryError:
            return  # not a failure: smaller work may still be recorded
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
        self._ready_in = set[int]()  # threads

    def renew(self) -> None:
        """All earlier recordings have been dropped: share new memory; the old memory is freed with
        the last graph that uses it."""
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Run) -> Run:
        """Return a function that repeats what `run` does, on the same memory, and always returns
        the same tensor, with new contents. `run` has run in this thread before, so that its
        first-time setup is done; the recorder's device must be the current one.

        Raises RuntimeError, or whatever `run` raises, if `run` waits for the device.
        """
        # A failed capture leaves its own stream current; this context restores the previous one.
        with torch.cuda.stream(torch.cuda.current_stream()):
            if get_ident() not in self._ready_in:
                self._try(run)
                self._ready_in.add(get_ident())
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
            with torch.cuda.stream(self._stream), NoWaiting():  # type: ignore[no-untyped-call]
                run()
        finally:
            current.wait_stream(self._stream)


class NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises RuntimeError where the host waits for the device, which no graph can do; found before
    the capture, this leaves no partial one. Unlike torch's own mode, it leaves other threads alone.
    It misses some waits, which the capture finds."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        waits = func in _WAITING
        if func in _INDEXING:  # counts how many of a mask's entries are set
            masks = (torch.bool, torch.uint8)
            waits = any(index is not None and index.dtype in masks for index in args[1])
        elif func in _COPYING:
            waits = out.device != args[1 if func is _ATEN.copy_.default else 0].device
        if waits:
            raise RuntimeError(f"{func} waits for the device, which no graph can do")
        return out
