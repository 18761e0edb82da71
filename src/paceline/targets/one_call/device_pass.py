"""Run a target's passes as few operators of torch, for a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.pytorch_utils import Conv1D

from paceline.kernels.attention import switch_to_grouped
from paceline.kernels.linear import FastLinear
from paceline.kernels.norm import use_fast_norms
from paceline.kernels.programs.steps import Lowered
from paceline.kernels.programs.torch_pass import TorchPass
from paceline.kernels.programs.torch_program import TorchProgram
from paceline.kernels.stand_in import LinearStandIn
from paceline.targets.kv_cache import TreeCache
from paceline.targets.one_call.compiled_pass import kept_outputs
from paceline.targets.one_call.lowering import lower
from paceline.targets.one_call.recording import UnfitError, record, unfit_if_it_fails
from paceline.targets.pass_inputs import InputsInOne, Windows
from paceline.targets.virtual_tokens import VirtualTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ANY_SHAPE = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention for passes of any shape. cuDNN's is faster, but prepares itself for every new shape,
which takes longer than fifty passes."""
_LARGE = 64 << 20  # bytes; quantised layers keep their weights in buffers
_RECURRING = [SDPBackend.CUDNN_ATTENTION, *_ANY_SHAPE]

# torch keeps the choice per process: two threads that change it at once could leave it changed.
_choosing = Lock()


def device_steps(model: PreTrainedModel, windows: Windows) -> Lowered:
    """Lower `model` to steps on its own linear layers. windows: see `attention_windows`. Raises
    UnfitError, naming the reason, for a model that cannot be lowered."""
    with unfit_if_it_fails("it cannot be recorded"):
        copy = _recordable(model)
        table = model.get_input_embeddings().weight.detach()
        return lower(copy, record(copy, windows), table)


class DevicePass:
    """Runs the steps of a model without the model, in its dtype and on its device.

    steps: see `device_steps`. table: the model's embeddings. virtual: the embeddings of ids beyond
    the vocabulary.

    Raises UnfitError for steps that torch's operators do not cover.
    """

    def __init__(self, steps: Lowered, table: torch.Tensor, virtual: VirtualTokens) -> None:
        self._steps, self._table, self._virtual = steps, table, virtual
        self.keep_outputs(())
        if table.is_cuda:
            torch.cuda.empty_cache()  # the weights that were merged

    def keep_outputs(self, layers: Sequence[int]) -> None:
        """See `CompiledPass.keep_outputs`."""
        steps = kept_outputs(self._steps, layers)
        with unfit_if_it_fails("torch cannot run its steps"):
            self._program = TorchProgram(steps, self._table.device, self._table.dtype)

    def reserve(self, positions: int) -> int:
        """Prepare for positions below this; returns how often tables have moved in memory."""
        self._program.operands.reserve(positions)
        return self._program.operands.moves

    def run(
        self, inputs: InputsInOne, windows: Windows, cache: TreeCache, keep: torch.Tensor | None
    ) -> torch.Tensor:
        """Run one pass; logits [rows, vocabulary]. keep: the rows whose logits are wanted; None for
        all, in passes of recurring shape. All positions must have been reserved."""
        program, like = self._program, self._table
        masks, _ = inputs.masks(windows, like.dtype)
        by_kind = [masks] if isinstance(masks, torch.Tensor) else [*masks.values()]
        pool = cache.pool(program.heads, program.size, like)
        now = TorchPass(
            inputs.tokens[0],
            inputs.positions[0],
            inputs.where,
            inputs.view,
            [mask[0, 0] for mask in by_kind],
            keep,
            pool,
            cache.all_states() if cache.keeps_states else None,
            self._virtual.table,
            program.operands,
        )
        if not like.is_cuda:
            return program.run(now)
        with _choosing, sdpa_kernel(_RECURRING if keep is None else _ANY_SHAPE):
            return program.run(now)


def _recordable(model: PreTrainedModel) -> PreTrainedModel:
    """A copy to record: on the CPU, in float32, without large weights; hooks are copied, too.
    Raises UnfitError for a model with other weights than linear layers' and embeddings', or whose
    attention cannot be recorded."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise UnfitError(f"its embeddings are of class {type(table).__name__}")
    stands: dict[int, Any] = {
        id(table.weight): nn.Parameter(torch.zeros(1, 1, device="cpu").expand(table.weight.shape))
    }
    for module in model.modules():
        matrices = any(part.dim() > 1 for part in module.parameters(recurse=False))
        if type(module) in (nn.Linear, Conv1D):
            if _does_more(module):
                raise UnfitError("its linear layers have hooks")
            stands[id(module)] = LinearStandIn(module)
        elif isinstance(module, FastLinear) or (matrices and not isinstance(module, nn.Embedding)):
            raise UnfitError(f"it has layers of the unsupported class {type(module).__name__}")
        if any(buffer.nbytes > _LARGE for buffer in module.buffers(recurse=False)):
            raise UnfitError(f"layers of class {type(module).__name__} have large buffers")
    copy = deepcopy(model, stands)
    copy._apply(_in_floats)
    if not switch_to_grouped(copy):
        raise UnfitError("its attention cannot be recorded")
    use_fast_norms(copy)
    return copy


def _does_more(linear: nn.Module) -> bool:
    """Whether a layer does more than its class when it is called: that would be lost."""
    own = "forward" in vars(linear) and not hasattr(linear, "_hf_hook")  # accelerate's only move
    return own or bool(linear._forward_hooks or linear._forward_pre_hooks)


def _in_floats(numbers: torch.Tensor) -> torch.Tensor:
    numbers = numbers.detach().cpu()
    return numbers.float() if numbers.is_floating_point() else numbers
