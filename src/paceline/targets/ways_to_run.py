"""How a model runs: in one process or several, and compiled or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def in_several_processes(model: PreTrainedModel) -> bool:
    """Whether processes wait for each other within a pass, unlike those with a whole model each."""
    world = torch.distributed
    if not (world.is_available() and world.is_initialized() and world.get_world_size() > 1):
        return False
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    # Torch's FSDP, of either version, marks what it manages.
    managed = bool(getattr(model, "_is_fsdp_managed_module", False))
    return bool(managed or (model.tp_size or 1) > 1 or is_deepspeed_zero3_enabled())


def is_compiled(model: PreTrainedModel) -> bool:
    """Whether torch.compile has replaced a forward: `module.compile()` has, or the caller."""
    return any(
        each._compiled_call_impl is not None or hasattr(each.forward, "_torchdynamo_orig_callable")
        for each in model.modules()
    )
