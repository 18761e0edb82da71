"""How a model's weights determine the cost of a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from paceline.kernels.autocast import autocast_dtype
from paceline.kernels.block_layers import BlockLinear
from paceline.kernels.blocks import BF16_PRODUCTS
from paceline.kernels.linear import FastLinear
from paceline.kernels.token_table import head_reads_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATTENTION_BLOCK = 512
_GPU_GRAIN = 256


def least_rows(model: nn.Module) -> int:
    """Most rows that a pass of the model can have at the cost of one."""
    return max(
        (each.min_rows for each in model.modules() if isinstance(each, FastLinear)), default=1
    )


def on_one_gpu(model: PreTrainedModel) -> bool:
    """Whether the whole model is on one CUDA device, so that its passes may be captured."""
    devices = {parameter.device for parameter in model.parameters()}
    # A model sharded over processes waits for the others' passes. Autocast keeps weights that it
    # has rounded: a capture would leave them in memory that the next one uses.
    alone = getattr(model, "tp_size", None) is None and autocast_dtype(model) is None
    return alone and len(devices) == 1 and devices.pop().type == "cuda"


def slot_grain(model: PreTrainedModel) -> int:
    """Passes with torch's attention attend to a multiple of this many cache slots, those after the
    text masked; texts' stretches are multiples too.

    Torch's CPU kernel processes slots in blocks of 512, and sums in another order if the last block
    is shorter. With whole blocks, and products that treat each row alike whatever their number, a
    token's scores are bit-identical in passes of any width. On a GPU, libraries prepare kernels for
    every new length, which takes longer than a pass.
    """
    if model.device.type != "cpu":
        return _GPU_GRAIN
    prepared = any(isinstance(each, FastLinear) for each in model.modules())
    return _ATTENTION_BLOCK if prepared else 1


def layers_in_blocks(model: nn.Module) -> list[BlockLinear]:
    """Linear layers on weights in low-bit blocks."""
    return [each for each in model.modules() if isinstance(each, BlockLinear) and each.rounded]


def is_quantised(model: nn.Module) -> bool:
    """Whether the model has weights in low-bit blocks."""
    return bool(layers_in_blocks(model))


def is_rough(model: nn.Module) -> bool:
    """Whether the model's products round their rows to bfloat16."""
    layers = (each for each in model.modules() if isinstance(each, BlockLinear))
    return any(each.matrix.format in BF16_PRODUCTS for each in layers)


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that one pass reads: all but embeddings that are only looked up."""
    parameters: dict[int, int] = {id(each): each.nbytes for each in model.parameters()}
    if not head_reads_table(model):
        parameters.pop(id(getattr(model.get_input_embeddings(), "weight", None)), None)
    layers = (each.weight_bytes for each in model.modules() if isinstance(each, FastLinear))
    return sum(parameters.values()) + sum(layers)
