"""A copy of a model to record: on the CPU, in float32, without its large weights."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from paceline.kernels.attention import switch_to_grouped
from paceline.kernels.norm import fast_norm
from paceline.kernels.stand_in import LinearStandIn
from paceline.targets.one_call.recording import UnfitError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["recordable"]

_LARGE = 64 << 20  # bytes; quantised layers keep their weights in buffers


def recordable(model: PreTrainedModel) -> PreTrainedModel:
    """The copy; hooks are copied with their modules. Raises UnfitError for a model with other
    weights than linear layers' and embeddings', or whose attention cannot be recorded."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise UnfitError(f"its embeddings are of class {type(table).__name__}")
    stands: dict[int, Any] = {
        id(table.weight): nn.Parameter(torch.zeros(1, 1).expand(table.weight.shape))
    }
    for module in model.modules():
        matrices = any(part.dim() > 1 for part in module.parameters(recurse=False))
        if type(module) in (nn.Linear, Conv1D):
            if _does_more(module):
                raise UnfitError("its linear layers have hooks")
            stands[id(module)] = LinearStandIn(module)
        elif matrices and not isinstance(module, nn.Embedding):
            raise UnfitError(f"it has layers of the unsupported class {type(module).__name__}")
        if any(buffer.nbytes > _LARGE for buffer in module.buffers(recurse=False)):
            raise UnfitError(f"layers of class {type(module).__name__} have large buffers")
    copy = deepcopy(model, stands)
    copy._apply(_in_floats)
    if not switch_to_grouped(copy):
        raise UnfitError("its attention cannot be recorded")
    for name, module in [*copy.named_modules()]:
        norm = fast_norm(module)
        if norm is not None:
            copy.set_submodule(name, norm)
    return copy


def _does_more(linear: nn.Module) -> bool:
    """Whether a layer does more than its class when it is called: that would be lost."""
    own = "forward" in vars(linear) and not hasattr(linear, "_hf_hook")  # accelerate's only move
    return own or bool(linear._forward_hooks or linear._forward_pre_hooks)


def _in_floats(numbers: torch.Tensor) -> torch.Tensor:
    numbers = numbers.detach().cpu()
    return numbers.float() if numbers.is_floating_point() else numbers
