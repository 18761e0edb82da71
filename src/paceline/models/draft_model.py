"""A draft model made from another model: some of its layers; the rest is borrowed.

Embeddings and output head are the base's, in the same memory; layers and the last normalisation are
the draft's own, because they are trained for their new neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelError
from paceline.kernels.block_layers import BlockEmbedding
from paceline.kernels.reduced_head import ReducedHead
from paceline.kernels.token_table import has_rows, head_reads_table, part_of_table, rows_of, size_of
from paceline.models.progress import muted

VOCABULARY = "draft.vocabulary"
"""Name, among a draft's tensors, of the ids [count] int32 it can generate, ascending."""

_ROWS, _BIAS = "draft.head.weight", "draft.head.bias"
# Attention implementations of transformers; the target may have given the base another one.
_ATTENTION = ("sdpa", "eager")


def layers_of(model: PreTrainedModel) -> str:
    """The name of a model's list of decoder layers, e.g. "model.layers"; raises ModelError if they
    are not in one list."""
    count = model.config.get_text_config().num_hidden_layers
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) == count and not inside:
            found.append(name)
    if len(found) != 1:
        raise ModelError(
            f"{type(model).__name__} does not have its {count} layers in one list, so a draft "
            "model cannot be made of some of them: choose another model to draft for"
        )
    return found[0]


def lent_modules(base: PreTrainedModel) -> dict[str, nn.Module]:
    """The embeddings that the base lends to a draft model, position embeddings included, by name.
    Raises ModelError if the input embeddings are not an ordinary table, or not in memory."""
    layers = layers_of(base)
    found: dict[str, nn.Module] = {
        name: module
        for name, module in base.named_modules()
        if isinstance(module, nn.Embedding | BlockEmbedding) and not name.startswith(f"{layers}.")
    }
    tokens = base.get_input_embeddings()
    if all(module is not tokens for module in found.values()) or part_of_table(base).is_meta:
        raise ModelError(
            f"the input embeddings of {type(base).__name__} are not a table in memory that a draft "
            "model could share: load the model whole on one device"
        )
    return found


def name_of_head(model: PreTrainedModel) -> str:
    """The name of the output head, e.g. "lm_head"; raises ModelError if there is none."""
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if module is head:
            return str(name)
    raise ModelError(f"{type(model).__name__} has no output head that a draft model could share")


def head_tensors(
    base: PreTrainedModel, tokens: torch.Tensor, lent: bool = False
) -> dict[str, torch.Tensor]:
    """The tensors a draft stores for a reduced output head: the ids, and what cannot be looked up
    later. If the base's output head is its input embedding, rows are looked up there; another head
    may have been packed for oneDNN, and so be gone, when the draft is opened.

    base: as it was loaded. tokens: ids [count], ascending. lent: whether rows are always looked up.
    """
    whole: Any = base.get_output_embeddings()
    kept = {VOCABULARY: tokens.to(torch.int32)}
    place = tokens.to(torch.int64)
    if not lent and not head_reads_table(base):
        kept[_ROWS] = rows_of(whole, place)
    if whole.bias is not None:
        kept[_BIAS] = whole.bias.detach()[place.to(whole.bias.device)]
    return kept


def own_tensors(draft: PreTrainedModel, base: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A draft's own tensors by name, not copied: the parameters of its layers and of the last
    normalisation, and the `head_tensors` of a reduced output head."""
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

    base: lends embeddings and output head; it may have been prepared. config: of the draft; it
    differs from the base's only in its layers. tensors: see `own_tensors`; not copied if device and
    dtype are right already. dtype: of the draft's own tensors; the base's by default.

    A whole output head is shared as a module if it has been prepared, otherwise by its weight,
    because preparing either model takes the weight out of the module.

    Raises ModelError if the tensors do not fit the configuration.
    """
    lent, head = lent_modules(base), name_of_head(base)
    device, dtype = part_of_table(base).device, dtype or part_of_table(base).dtype
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
    draft.set_submodule(head, _head(base, tensors, config.tie_word_embeddings))
    return draft.eval()


def _placeholder(size: torch.Size, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A stand-in that takes no memory, for a tensor that is replaced before it is read."""
    return torch.zeros((), device=device, dtype=dtype).expand(size)


def _load(
    base: PreTrainedModel,
    config: PreTrainedConfig,
    state: dict[str, torch.Tensor],
    head: str,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """Load through transformers' own loader, which takes care of buffers."""
    device = part_of_table(base).device
    if not config.tie_word_embeddings:
        size = torch.Size((config.vocab_size, base.get_output_embeddings().in_features))
        state[f"{head}.weight"] = _placeholder(size, device, dtype)
        if getattr(base.get_output_embeddings(), "bias", None) is not None:
            state[f"{head}.bias"] = _placeholder(size[:1], device, dtype)
    attention = base.config._attn_implementation
    options: dict[str, Any] = {} if device.type == "cpu" else {"device_map": {"": device}}
    # None: what the class itself would choose, as not all have both.
    options["attn_implementation"] = attention if attention in _ATTENTION else None
    options |= {"config": config, "state_dict": state, "dtype": dtype}
    try:
        with muted():
            draft, report = type(base).from_pretrained(None, output_loading_info=True, **options)
        wrong = sorted({*report["missing_keys"], *report["unexpected_keys"]} - {f"{head}.bias"})
        if wrong:
            raise ValueError(f"{wrong[0]} is missing or unexpected")
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"the weights of the draft model do not fit its layers: {reason}"
        ) from error
    model: PreTrainedModel = draft
    return model


def _head(base: PreTrainedModel, tensors: Mapping[str, torch.Tensor], tied: bool) -> nn.Module:
    """A draft's output head: the base's, or some of its rows; those of a packed one are among the
    embeddings, where these are `tied` to it."""
    whole: Any = base.get_output_embeddings()
    if VOCABULARY not in tensors:
        if type(whole) is not nn.Linear or hasattr(whole, "_hf_hook"):
            shared: nn.Module = whole
            return shared
        return _linear(whole.weight, whole.bias)
    like = part_of_table(base)
    tokens = tensors[VOCABULARY].to(like.device, torch.int64)
    stored = base.get_input_embeddings() if tied and not has_rows(whole) else whole
    if _ROWS in tensors:
        rows = tensors[_ROWS]
    elif has_rows(stored):
        rows = rows_of(stored, tokens)[:, : whole.in_features]
    else:
        raise ModelError(
            "the draft model reads the output head of its model, which was packed: load the model "
            "with weights='native' (--weights native)"
        )
    bias = tensors[_BIAS].to(like) if _BIAS in tensors else None
    return ReducedHead(_linear(rows.to(like), bias), tokens, base.config.vocab_size)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear layer on these tensors, not copies."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    for name, own in (("weight", weight), ("bias", bias)):
        if own is not None:
            part = own if isinstance(own, nn.Parameter) else nn.Parameter(own)
            layer.register_parameter(name, part)
    return layer
