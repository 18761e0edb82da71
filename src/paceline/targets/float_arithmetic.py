"""Models in bfloat16 or float16 on a CPU: their weights keep that format, all else is float32.

Passes read half as much memory as in float32, and compute exactly what float32 does with the same
numbers, unless products round their rows to bfloat16 (`Bfloat16Linear`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.blocks import in_floats
from paceline.kernels.native.calls import unavailable
from paceline.kernels.token_table import block_embedding, takes_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATEN = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_COLUMNS = 4096  # of a matrix, widened at a time


class FloatArithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, operators convert 16-bit numbers to float32, and return float32."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _ATEN.t.default:
            return func(*args)
        if func is _ATEN.mm.default and args[1].dtype in _HALVES:  # in pieces: a head may be huge
            rows, pieces = args[0].float(), args[1].split(_COLUMNS, dim=1)
            return torch.cat([rows @ piece.float() for piece in pieces], dim=1)
        if func is not _ATEN.embedding.default:  # a lookup reads few rows: widen only these, below
            args, kwargs = tree_map(_as_floats, (args, kwargs))
        return tree_map(_as_floats, func(*args, **kwargs))


def can_compute_in_floats(model: PreTrainedModel, linears: Collection[nn.Module]) -> bool:
    """Whether everything in a 16-bit model but these linear layers and its table of tokens can
    become float32: norms, biases, a table of positions."""
    if model.dtype not in _HALVES or model.device.type != "cpu" or unavailable():
        return False
    table = model.get_input_embeddings()
    if not takes_blocks(table):
        return False
    others = [each for each in model.modules() if each not in linears and each is not table]
    return all(
        own.dim() < 2 or isinstance(each, nn.Embedding)
        for each in others
        for own in each.parameters(recurse=False)
    )


def compute_in_floats(model: PreTrainedModel, head_is_table: bool) -> None:
    """Convert a model, whose linear layers already are `BlockLinear`, to float32, except for their
    weights and its table of tokens.

    head_is_table: whether the output head had the table's weights; unless it was rounded, it still
    shares them.
    """
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    shared = head_is_table and isinstance(head, BlockLinear) and not head.rounded
    matrix = head.matrix if shared else in_floats(table.weight)
    stand_in = block_embedding(table, matrix, torch.float32)
    for name in [name for name, each in model.named_modules() if each is table]:
        model.set_submodule(name, stand_in)
    model.float()


def _as_floats(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return given.float() if given.dtype in _HALVES else given
    return torch.float32 if given in _HALVES else given
