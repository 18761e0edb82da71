"""Make a model's passes cheap: pack or quantise its linear layers, and fuse what can be fused.

The model is changed in place and keeps its interface. Layers to replace are found by walking the
modules and by what they compute, never by architecture. Layers that cannot be replaced stay
unchanged and are listed in the report.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from paceline.errors import UsageError
from paceline.kernels.attention import use_grouped_attention
from paceline.kernels.block_layers import Bfloat16Linear, BlockLinear, Int4Linear, Int8Linear
from paceline.kernels.choice import WORTH_CHOOSING, fastest
from paceline.kernels.linear import (
    FastLinear,
    Maker,
    PackedAndPlainLinear,
    PlainLinear,
    UnpackableError,
    keep_faster,
    make_linear,
)
from paceline.kernels.memory import FilePages
from paceline.kernels.native.calls import kernels, unavailable
from paceline.kernels.norm import fast_norm
from paceline.kernels.packed import make_packed
from paceline.kernels.shared_input import Projection, SharedInput, find_shared_inputs
from paceline.kernels.token_table import head_reads_table
from paceline.targets.float_arithmetic import (
    FloatArithmetic,
    can_compute_in_floats,
    compute_in_floats,
)
from paceline.targets.preparation import NATIVE, Preparation
from paceline.targets.stacked_blocks import stack_blocks
from paceline.targets.support import check_supported
from paceline.targets.trial import compare, trial
from paceline.targets.weights import weight_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["AUTO", "BLOCKS", "WEIGHTS", "arithmetic_of", "check_weights", "prepare"]

Layer = Any  # nn.Linear, or transformers' Conv1D, whose weight is transposed

AUTO = "auto"
BLOCKS = "blocks"
_KINDS: dict[str, Maker] = {
    "fused": PlainLinear,
    "packed": make_packed,
    "packed+plain": PackedAndPlainLinear,
    "bfloat16": Bfloat16Linear,
    "int8": Int8Linear,
    "int4": Int4Linear,
}
_IN_PANELS = ("packed", "bfloat16", "int8", "int4")  # our products, which take float32 rows
_ROUNDED = ("bfloat16", "int8", "int4")
_MANY_WEIGHTS = 64 << 20
"""Of a draft model; no cache holds more in 8 bits, and reading half the bytes saves more time than
rounding costs guesses."""
WEIGHTS = (AUTO, NATIVE, *_KINDS)
"""How linear layers hold their weights. native: unchanged; fused: layers with one input become one
product; packed: fused, in the layout of the fastest product; packed+plain: packed, with a second
copy for one-row passes; bfloat16: in bfloat16, as are rows in products; int8, int4: fused and
quantised; auto: on the CPU, blocks if loaded so, else bfloat16 if the model is and the processor
multiplies such numbers, else packed; on other devices native."""


def check_weights(weights: str) -> None:
    """Raises UsageError for a name that is not in `WEIGHTS`."""
    if weights not in WEIGHTS:
        raise UsageError(f"unknown weights {weights!r}: use one of {', '.join(WEIGHTS)}")


@torch.no_grad()
def prepare(model: PreTrainedModel, weights: str = AUTO, *, exact: bool = True) -> Preparation:
    """Change `model` in place so that its passes cost less, and report what was done.

    exact: whether its scores must stay the same. A draft model's need not; auto is then int8 (int4
    in large models), with a 4-bit output head, if that is faster here than packed.

    New weights replace the old ones layer by layer: memory never holds the model twice.

    Raises UsageError for unknown weights, or quantised ones that this machine cannot run.
    """
    check_weights(weights)
    done = Preparation(_usual(model) if weights == AUTO else weights)
    if done.weights == NATIVE:
        return done
    check_supported(model)
    linears = _linear_layers(model, done)
    in_blocks = _in_blocks(model)
    done.linears = done.products = len(in_blocks)
    if weights == AUTO and (in_blocks or not exact):
        done.weights = BLOCKS if in_blocks and (exact or not linears) else _fastest(linears)
    elif in_blocks and not linears:
        raise UsageError(
            f"the model's weights are in the blocks of their file and cannot be converted to "
            f"{weights}: load the model with weights={weights!r}"
        )
    in_floats = done.weights in _IN_PANELS and can_compute_in_floats(model, linears)
    head_is_table = head_reads_table(model)
    before: list[torch.Tensor] = []
    try:
        layers = [*linears, *in_blocks]
        with FloatArithmetic() if in_floats else nullcontext():
            shared = find_shared_inputs(lambda: before.append(trial(model)), layers)
    except Exception as error:  # the model needs more than token ids, and may raise anything
        return Preparation(
            left=Counter({f"all layers: a trial pass failed ({error})": len(linears)})
        )
    places = _places(model)
    light_head = weights == AUTO and not exact
    _replace_all(model, shared, linears, places, done, light_head)
    if done.weights in _ROUNDED and not done.linears:
        reasons = "; ".join(done.left) or "it has no linear layers"
        raise UsageError(f"this model cannot run with {done.weights} weights here: {reasons}")
    if in_floats:
        done.halves = str(model.dtype).removeprefix("torch.")
        compute_in_floats(model, head_is_table)
    _replace_others(model, places, done)
    quantised = done.weights in ("int8", "int4", BLOCKS)
    compare(model, before[0], done.weights, quantised)
    return done


def _replace_others(
    model: PreTrainedModel, places: dict[nn.Module, list[str]], done: Preparation
) -> None:
    """Replace norms and attention, and move the weights to huge pages."""
    for module, names in places.items():
        norm = fast_norm(module)
        if norm is not None:
            _put(model, names, norm)
            done.norms += 1
    done.grouped_attention = use_grouped_attention(model)
    done.on_huge_pages(weight_bytes(model))
    copies = [each for each in model.modules() if isinstance(each, PackedAndPlainLinear)]
    if copies:
        done.plain_copy = keep_faster(copies)


def arithmetic_of(model: PreTrainedModel) -> str:
    """The arithmetic of an unprepared model: `BLOCKS`, or its dtype's name."""
    return BLOCKS if _in_blocks(model) else str(model.dtype).removeprefix("torch.")


def _in_blocks(model: nn.Module) -> list[BlockLinear]:
    return [each for each in model.modules() if isinstance(each, BlockLinear) and each.rounded]


def _usual(model: PreTrainedModel) -> str:
    """The meaning of auto for a model that is not in blocks."""
    if model.device.type != "cpu":
        return NATIVE
    own = model.dtype == torch.bfloat16 and not unavailable() and bool(kernels().bfloat16_products)
    return "bfloat16" if own else "packed"


def _fastest(linears: list[Layer]) -> str:
    """The kind for a model that need not be exact: packed, int8 or, if it is too large for the
    processor's caches, int4, whichever is fastest."""
    weights = [_weight(layer) for layer in linears]
    if sum(weight.nbytes for weight in weights) < WORTH_CHOOSING:
        return "packed"
    names = ["packed", "int8"]
    if sum(weight.numel() for weight in weights) > _MANY_WEIGHTS:
        names.append("int4")
    return fastest(weights, {name: _KINDS[name] for name in names})


def _places(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Map every module to all its names."""
    places: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        places.setdefault(module, []).append(name)
    return places


def _put(model: nn.Module, names: list[str], module: nn.Module) -> None:
    for name in names:
        model.set_submodule(name, module)


def _linear_layers(model: nn.Module, done: Preparation) -> list[Layer]:
    """Find the layers that compute weight @ x + bias and nothing else; the reasons against others
    go to the report."""
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


def _largest_first(shared: list[list[Layer]], linears: list[Layer]) -> list[list[Layer]]:
    """Sort the groups, and every other layer as its own group, largest first: old and new weights
    of the largest coexist before anything else is added."""
    of_floats = [[layer for layer in group if layer in linears] for group in shared]
    together = {layer for group in of_floats for layer in group}
    groups = [*filter(None, of_floats), *([each] for each in linears if each not in together)]
    return sorted(groups, key=lambda group: -sum(layer.weight.nbytes for layer in group))


def _replace_all(
    model: nn.Module,
    shared: list[list[Layer]],
    linears: list[Layer],
    places: dict[nn.Module, list[str]],
    done: Preparation,
    light_head: bool,
) -> None:
    """Replace linear layers by products; those in blocks that share an input become one."""
    pages = FilePages()
    pages.forget(model.parameters())
    for group in _largest_first(shared, linears):
        _replace_together(model, group, places, pages, done, light_head)
    for group in shared:
        alike = [layer for layer in group if isinstance(layer, BlockLinear) and layer.rounded]
        done.products -= stack_blocks(model, alike, places)


def _replace_together(
    model: nn.Module,
    group: list[Layer],
    places: dict[nn.Module, list[str]],
    pages: FilePages,
    done: Preparation,
    light_head: bool,
) -> None:
    """Replace layers that share an input, or a single layer, by one product."""
    try:
        product = _product(model, group, done.weights, light_head)
    except UnpackableError as reason:
        if len(group) > 1:
            for layer in group:
                _replace_together(model, [layer], places, pages, done, light_head)
        else:
            done.left[str(reason)] += 1
        return
    done.linears += len(group)
    done.products += 1
    sizes = [len(_weight(layer)) for layer in group]
    shared = SharedInput(product, sizes)
    pages.forget(layer.weight for layer in group)
    for part, layer in enumerate(group):
        _put(model, places.pop(layer), Projection(shared, part) if len(group) > 1 else product)
        layer.weight = layer.bias = None  # a remaining reference keeps no weights alive


def _product(model: Any, group: list[Layer], weights: str, light_head: bool) -> FastLinear:
    """Make the product for a group. light_head: an 8-bit output head becomes 4-bit.

    Raises UnpackableError if torch or the processor does not support it.
    """
    kind = _KINDS.get(weights, make_packed)
    head = model.get_output_embeddings()
    if head is not None and not set(head.modules()).isdisjoint(group):
        if kind is Int4Linear and not light_head:
            kind = Int8Linear  # a 4-bit head gets too many tokens wrong
        elif kind is Int8Linear and light_head:
            kind = Int4Linear  # fine for a draft model, whose head is a large part of its reads
    return make_linear(kind, *_stack(group))


def _weight(layer: Layer) -> torch.Tensor:
    weight: torch.Tensor = layer.weight.detach()
    return weight.T if isinstance(layer, Conv1D) else weight


def _stack(group: list[Layer]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Stack the weights [outputs of all, inputs] and biases of a group."""
    weights = [_weight(layer) for layer in group]
    if len(group) == 1:
        return weights[0].contiguous(), group[0].bias
    if len({(weight.dtype, weight.device) for weight in weights}) > 1:
        raise UnpackableError("layers with the same input that differ in precision or device")
    biases = [layer.bias for layer in group]
    if all(bias is None for bias in biases):
        return torch.cat(weights), None
    filled = [
        weight.new_zeros(len(weight)) if bias is None else bias.detach()
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.cat(weights), torch.cat(filled)
