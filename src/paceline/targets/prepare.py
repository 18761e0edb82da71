"""Make a model's passes cheap: pack or quantise its linear layers, and fuse what can be fused.

The model is changed in place and keeps its interface. Layers to replace are found by walking the
modules and by what they compute, never by architecture. Layers that cannot be replaced stay
unchanged and are listed in the report.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from paceline.errors import UsageError, check_known
from paceline.kernels.attention import use_grouped_attention
from paceline.kernels.block_layers import make_packed, move_matrices
from paceline.kernels.choice import WORTH_CHOOSING, plain_pays
from paceline.kernels.linear import PackedAndPlainLinear, PackedLinear
from paceline.kernels.memory import WeightMemory
from paceline.kernels.native.calls import kernels, unavailable
from paceline.kernels.norm import use_fast_norms
from paceline.kernels.stand_in import weight_of
from paceline.kernels.token_table import head_reads_table
from paceline.targets.float_arithmetic import (
    FloatArithmetic,
    can_compute_in_floats,
    compute_in_floats,
)
from paceline.targets.layer_replacement import KINDS, Layer, LayerReplacement
from paceline.targets.linear_watch import watching
from paceline.targets.preparation import NATIVE, Preparation
from paceline.targets.support import check_supported
from paceline.targets.trials import compare, trial
from paceline.targets.weights import is_quantised, layers_in_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AUTO = "auto"
BLOCKS = "blocks"
_IN_PANELS = ("packed", "bfloat16", "int8", "int4")  # our products, which take float32 rows
_ROUNDED = ("bfloat16", "int8", "int4")
WEIGHTS = (AUTO, NATIVE, *KINDS)
"""How linear layers hold their weights. native: unchanged; fused: layers with one input become one
product; packed: fused, in the layout of the fastest product; packed+plain: packed, with a second
copy for one-row passes; bfloat16: in bfloat16, as are rows in products; int8, int4: fused and
quantised; auto: on the CPU, blocks if loaded so, else bfloat16 if the model is and the processor
multiplies such numbers, else packed; on other devices native."""


def check_weights(weights: str) -> None:
    """Raises UsageError for a name that is not in `WEIGHTS`."""
    check_known("weights", WEIGHTS, weights)


@torch.no_grad()
def prepare(model: PreTrainedModel, weights: str = AUTO, *, exact: bool = True) -> Preparation:
    """Change `model` in place so that its passes cost less, and report what was done.

    exact: whether its scores must stay the same. A draft model's need not; auto is then int4, or
    packed for a small one or without the C library. The output head of int4 has 8 bits.

    New weights replace the old ones layer by layer: memory never holds the model twice.

    Raises UsageError for unknown weights, or quantised ones that this machine cannot run.
    """
    check_weights(weights)
    done = Preparation(_usual(model) if weights == AUTO else weights)
    if done.weights == NATIVE:
        return done
    check_supported(model)
    linears = _linear_layers(model, done)
    in_blocks = layers_in_blocks(model)
    done.linears = done.products = len(in_blocks)
    if weights == AUTO and (in_blocks or not exact):
        done.weights = BLOCKS if in_blocks and (exact or not linears) else _of_draft(linears)
    elif in_blocks and not linears:
        raise UsageError(
            f"the model's weights are in the blocks of their file and cannot be converted to "
            f"{weights}: load the model with weights={weights!r}"
        )
    in_floats = done.weights in _IN_PANELS and can_compute_in_floats(model, linears)
    head_is_table = head_reads_table(model)
    try:
        layers = [*linears, *in_blocks]
        with FloatArithmetic() if in_floats else nullcontext(), watching(layers) as seen:
            before = trial(model)
    except Exception as error:  # the model needs more than token ids, and may raise anything
        reason = f"all layers: a trial pass failed ({error})"
        return Preparation(left=Counter({reason: len(linears)}))
    if seen.read:
        done.left["layers whose weights other code reads"] += len(seen.read)
        linears = [layer for layer in linears if layer not in seen.read]
    memory = WeightMemory()
    kind = KINDS.get(done.weights, make_packed)
    if kind is PackedAndPlainLinear and linears and model.device.type == "cpu":
        pays, done.plain_copy = plain_pays([weight_of(layer) for layer in linears])
        kind = kind if pays else PackedLinear
    LayerReplacement(model, done, kind, memory).replace(seen.shared, linears)
    if done.weights in _ROUNDED and not done.linears:
        reasons = "; ".join(done.left) or "it has no linear layers"
        raise UsageError(f"this model cannot run with {done.weights} weights here: {reasons}")
    if in_floats:
        done.halves = str(model.dtype).removeprefix("torch.")
        compute_in_floats(model, head_is_table)
    move_matrices(model, memory)
    done.norms, done.grouped_attention = use_fast_norms(model), use_grouped_attention(model)
    quantised = done.weights in ("int8", "int4", BLOCKS)
    compare(model, before, done.weights, quantised)
    return done


def arithmetic_of(model: PreTrainedModel) -> str:
    """The arithmetic of an unprepared model: `BLOCKS`, or its dtype's name."""
    return BLOCKS if is_quantised(model) else str(model.dtype).removeprefix("torch.")


def _usual(model: PreTrainedModel) -> str:
    """The meaning of auto for a model that is not in blocks."""
    if model.device.type != "cpu":
        return NATIVE
    own = model.dtype == torch.bfloat16 and not unavailable() and bool(kernels().bfloat16_products)
    return "bfloat16" if own else "packed"


def _of_draft(linears: list[Layer]) -> str:
    """The kind for a model that need not be exact: reading half the bytes saves more time than
    rounding to 4 bits costs right guesses. It is not measured: such short times are mostly noise,
    and what is chosen is kept."""
    size = sum(weight_of(layer).nbytes for layer in linears)
    return "packed" if unavailable() or size < WORTH_CHOOSING else "int4"


def _linear_layers(model: nn.Module, done: Preparation) -> list[Layer]:
    """The layers that compute weight @ x + bias and nothing else; `done` gets others' reasons."""
    found = []
    for module in model.modules():
        if any(own.dim() > 2 for own in module.parameters(recurse=False)):
            done.left["weights with more than two dimensions (experts, convolutions)"] += 1
        elif isinstance(module, nn.Linear | Conv1D):
            if type(module) not in (nn.Linear, Conv1D):
                done.left[f"layers of class {type(module).__name__}"] += 1
            elif hasattr(module, "_hf_hook") or module.weight.is_meta:
                done.left["layers that accelerate moves between devices"] += 1
            else:
                found.append(module)
    return found
