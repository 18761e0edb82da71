"""A draft model that is a part of another model: some of its layers, and the rest is lent.

Embeddings and output head are those of the base, the very same memory; layers and the last
normalisation are the draft's own, because they are trained to stand next to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelError
from paceline.kernels.token_table import (
    device_of_table,
    dtype_of_table,
    head_reads_table,
    is_table,
    rows_of,
    size_of,
)
from paceline.models.draft_head import ReducedHead
from paceline.models.progress import muted

__all__ = [
    "VOCABULARY",
    "assemble",
    "head_tensors",
    "layers_of",
    "lent_modules",
    "name_of_head",
    "own_tensors",
]

VOCABULARY = "draft.vocabulary"
"""Among a draft's tensors: the ids [count] int32 of the tokens that it can say, ascending."""

_ROWS, _BIAS = "draft.head.weight", "draft.head.bias"
# The attention that transformers has for a model which the target may have given another one.
_ATTENTION = ("sdpa", "eager")


def layers_of(model: PreTrainedModel) -> str:
    """The name under which a model has its decoder layers, e.g. "model.layers".

    Raises ModelError where it does not have them in one list.
    """
    count = model.config.num_hidden_layers
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) == count and not inside:
            found.append(name)
    if len(found) != 1:
        raise ModelError(
            f"{type(model).__name__} does not have its {count} layers in one list, so none can be "
            "taken out of it: choose another model to draft for"
        )
    return found[0]


def lent_modules(base: PreTrainedModel) -> dict[str, nn.Module]:
    """By name the embeddings that a draft model reads with, those of positions among them.

    Raises ModelError where the input embeddings are no ordinary table, or not in memory.
    """
    layers = layers_of(base)
    found = {
        name: module
        for name, module in base.named_modules()
        if is_table(module) and not name.startswith(f"{layers}.")
    }
    tokens = base.get_input_embeddings()
    on_meta = device_of_table(base).type == "meta"
    if all(module is not tokens for module in found.values()) or on_meta:
        raise ModelError(
            f"the input embeddings of {type(base).__name__} are no table in memory, which a draft "
            "model could share: load it whole on one device"
        )
    return found


def name_of_head(model: PreTrainedModel) -> str:
    """The name of the output head, e.g. "lm_head"; raises ModelError where there is none."""
    head = model.get_output_embeddings()
    found: list[str] = [name for name, module in model.named_modules() if module is head]
    if found:
        return found[0]
    raise ModelError(f"{type(model).__name__} has no output head that a draft model could share")


def head_tensors(base: PreTrainedModel, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a draft keeps of a reduced output head: the ids, and what cannot be looked up later.

    base: as it was loaded. tokens: ids [count], ascending.

    Of a base whose output head is its input embedding the rows are looked up there. Another head
    may be gone when the draft is opened, because it was packed.
    """
    whole: Any = base.get_output_embeddings()
    kept = {VOCABULARY: tokens.to(torch.int32)}
    place = tokens.to(torch.int64)
    if not head_reads_table(base):
        kept[_ROWS] = rows_of(whole, place)
    if whole.bias is not None:
        kept[_BIAS] = whole.bias.detach()[place.to(whole.bias.device)]
    return kept


def own_tensors(draft: PreTrainedModel, base: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What is a draft's own, by name, not copied: the parameters of its layers and of the last
    normalisation, and of a reduced output head what `head_tensors` says."""
    lent = {*lent_modules(base), name_of_head(base)}
    own: dict[str, torch.Tensor] = {
        name: parameter.detach()
        for name, parameter in draft.named_parameters()
        if not any(name.startswith(f"{module}.") for module in lent)
    }
    head = draft.get_submodule(name_of_head(base))
    return own | (head_tensors(base, head.tokens) if isinstance(head, ReducedHead) else {})


def assemble(
    base: PreTrainedModel,
    config: PreTrainedConfig,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype | None = None,
) -> PreTrainedModel:
    """A causal language model of the base's class on layers of its own.

    base: lends embeddings and output head; it may have been prepared.
    config: of the draft, which differs from the base's in its layers alone.
    tensors: see `own_tensors`; they are not copied where they are where and what they need to be.
    dtype: of what is the draft's own; the base's by default.

    A whole output head is shared as a module where it has been prepared, and by its weight where
    not, because preparing either model takes the weight out of the module.

    Raises ModelError where the tensors do not fit the configuration.
    """
    lent, head = lent_modules(base), name_of_head(base)
    device = device_of_table(base)
    dtype = dtype or dtype_of_table(base)
    state = {
        name: tensor.to(device, dtype)
        for name, tensor in tensors.items()
        if name not in (VOCABULARY, _ROWS, _BIAS)
    }
    for name, module in lent.items():
        state[f"{name}.weight"] = _placeholder(size_of(module), device, dtype)
    place = config.name_or_path
    draft = _load(base, config, state, head, dtype)
    draft.name_or_path = draft.config.name_or_path = place
    for name, module in lent.items():
        draft.set_submodule(name, module)
    draft.set_submodule(head, _head(base, tensors))
    return draft.eval()


def _placeholder(size: torch.Size, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Stands for a tensor that is replaced before anyone reads it, and takes no memory."""
    return torch.zeros((), device=device, dtype=dtype).expand(size)


def _load(
    base: PreTrainedModel,
    config: PreTrainedConfig,
    state: dict[str, torch.Tensor],
    head: str,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """Through transformers' own loader, which knows what to do about buffers."""
    device = device_of_table(base)
    if not config.tie_word_embeddings:
        size = torch.Size((config.vocab_size, base.get_output_embeddings().in_features))
        state[f"{head}.weight"] = _placeholder(size, device, dtype)
        if getattr(base.get_output_embeddings(), "bias", None) is not None:
            state[f"{head}.bias"] = _placeholder(size[:1], device, dtype)
    attention = base.config._attn_implementation
    options: dict[str, Any] = {
        "attn_implementation": attention if attention in _ATTENTION else _ATTENTION[0]
    }
    if device.type != "cpu":
        options["device_map"] = {"": device}
    try:
        with muted():
            draft, report = type(base).from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=dtype,
                output_loading_info=True,
                **options,
            )
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"the weights of the draft model do not fit its layers: {reason}"
        ) from error
    wrong = sorted({*report["missing_keys"], *report["unexpected_keys"]} - {f"{head}.bias"})
    if wrong:
        raise ModelError(
            f"the weights of the draft model do not fit its layers: {wrong[0]} is missing or too much"
        )
    model: PreTrainedModel = draft
    return model


def _head(base: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """The output head of a draft: the base's, or some of its rows."""
    whole: Any = base.get_output_embeddings()
    if VOCABULARY not in tensors:
        if type(whole) is not nn.Linear or hasattr(whole, "_hf_hook"):
            shared: nn.Module = whole
            return shared
        return _linear(whole.weight, whole.bias)
    like: dict[str, Any] = {"device": device_of_table(base), "dtype": dtype_of_table(base)}
    tokens = tensors[VOCABULARY].to(like["device"], torch.int64)
    own = tensors[_ROWS] if _ROWS in tensors else rows_of(base.get_input_embeddings(), tokens)
    rows = own.to(**like)
    bias = tensors[_BIAS].to(**like) if _BIAS in tensors else None
    return ReducedHead(_linear(rows, bias), tokens, base.config.vocab_size)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A layer on these very tensors."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    layer.weight = _parameter(weight)
    if bias is not None:
        layer.bias = _parameter(bias)
    return layer


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor)
