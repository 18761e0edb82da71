"""Passes of recurring shapes on inputs at fixed addresses, so that a GPU can replay them.

A GPU runs a small model's pass faster than Python can launch its thousand kernels. A CUDA graph
launches all of them at once, but it records one particular pass: its shapes, addresses and every
number known to Python are fixed. So the passes recorded here have few shapes, and everything that
changes from pass to pass is read from `InputsInOne` on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch

from paceline.kernels import cuda_graph
from paceline.kernels.cuda_graph import Repeated, on_device
from paceline.targets.layout import PassLayout
from paceline.targets.pass_inputs import InputsInOne

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Forward", "StaticPasses", "on_one_gpu"]

Forward = Callable[[InputsInOne], torch.Tensor]
"""Inputs -> logits [rows, vocabulary]."""

_Shape = tuple[int, int]


def on_one_gpu(model: PreTrainedModel) -> bool:
    """Whether the whole model is on one CUDA device, so that its passes may be captured."""
    devices = {parameter.device for parameter in model.parameters()}
    # A model sharded over processes waits for the others' passes.
    alone = getattr(model, "tp_size", None) is None
    return alone and len(devices) == 1 and devices.pop().type == "cuda"


class StaticPasses:
    """The passes of a target with static shapes, one per (rows, slots).

    forward: runs the model; nothing it reads changes from pass to pass except its inputs.
    device: of the inputs. On a CUDA device, passes are captured, see `Repeated`. failed: why the
    first capture failed that did; then all passes are to run the ordinary way.
    """

    def __init__(self, forward: Forward, device: torch.device) -> None:
        self._forward = forward
        self._device = device
        self._recorder = cuda_graph.recorder_for(device)
        self._memory: Hashable = None
        self._passes: dict[_Shape, tuple[InputsInOne, Repeated]] = {}
        self._shapes: set[_Shape] = set()
        self._captured = 0
        self.failed: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Report how many shapes came, how many captures were made (a shape is captured again
        after the cache moves), and why one failed."""
        return {"shapes": len(self._shapes), "captured": self._captured, "failed": self.failed}

    def run(self, layout: PassLayout, slots: int, memory: Hashable) -> torch.Tensor:
        """Return logits [rows, vocabulary], which the next pass may overwrite. slots: that the pass
        attends to, of all its texts together. memory: see `ModelPass.reserve`; captured passes use
        the old addresses."""
        shape = (layout.rows, slots)
        with on_device(self._device):
            if memory != self._memory:
                self._passes, self._memory = {}, memory
                if self._recorder is not None:
                    self._recorder.renew()
            self._shapes.add(shape)
            inputs, repeated = self._passes.get(shape) or self._made(shape)
            inputs.fill(layout, static=True)
            recorded, logits = repeated.recorded, repeated()
            # Kept only now: an interrupted pass may have moved half of the cache.
            self._passes[shape] = inputs, repeated
            self._captured += repeated.recorded - recorded
            if repeated.failed:
                self.failed = repeated.failed
                self._passes.clear()
            return logits

    def _made(self, shape: _Shape) -> tuple[InputsInOne, Repeated]:
        """The inputs of a shape, and what runs the model on them."""
        inputs = InputsInOne(*shape, self._device, pinned=True)
        forward = self._forward  # not `self`: a circle would keep the graphs' memory for a while
        return inputs, Repeated(lambda: forward(inputs), self._recorder)
