"""A recorder of CUDA graphs for the CPU, to test recorded work where there is no GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paceline.kernels.cuda_graph import NoWaiting, Run


class Recording(NoWaiting):
    """Every operator that is called, with the very tensors it read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[tuple[int, torch.Tensor]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = super().__torch_dispatch__(func, types, args, kwargs)
        read = {memory(value) for value in tree_leaves((args, kwargs))}
        # Views and operators in place write to what they read.
        made = [
            (number, value)
            for number, value in enumerate(tree_leaves(out))
            if isinstance(value, torch.Tensor) and memory(value) not in read
        ]
        self.calls.append((func, args, kwargs, made))
        return out

    @torch.inference_mode()  # which some of the memory was made in
    def replay(self) -> None:
        """The same operators on the same memory: what a CUDA graph does."""
        for func, args, kwargs, made in self.calls:
            out = tree_leaves(func(*args, **kwargs))
            for number, place in made:
                place.copy_(out[number])


def memory(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else None


class CpuRecorder:
    """A recorder for the CPU that freezes what a CUDA graph freezes: shapes, addresses, and every
    number that Python knew."""

    made = 0

    def renew(self) -> None:
        pass

    def record(self, run: Run) -> Run:
        CpuRecorder.made += 1
        with Recording() as recording:
            result = run()

        def replay() -> torch.Tensor:
            recording.replay()
            return result

        return replay


class Refuses:
    """A recorder that fails the way a capture does: once inside, once more at its end."""

    def renew(self) -> None:
        pass

    def record(self, run: Run) -> Run:
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        finally:
            raise ValueError("capture_end") from None
